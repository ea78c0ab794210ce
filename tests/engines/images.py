"""One archive of images that every engine can load: Debian with the probe, and a pause image."""

import hashlib
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.runtime.bundle import flat
from tests.runtime.simulated import Driver

PLAIN = "localhost/nvhook/debian:plain"
CUDA = "localhost/nvhook/debian:cuda"  # asks for all GPUs, as CUDA's images do
PAUSE = "localhost/nvhook/pause:1"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a test needs none of.
OMITTED = ("usr/share", "var/cache", "var/lib", "var/log")


def make_archive(path: Path, root: Path, programs: Path, driver: Driver) -> None:
    """Write the archive, in the form of docker save.

    Source: the image specification v1.2 of github.com/moby/docker-image-spec.
    """
    debian = path.with_name("debian-layer.tar")
    with tarfile.open(debian, "w") as layer:
        layer.add(root, ".", filter=_wanted)
        for name in ("probe", "cuda_check"):
            layer.add(programs / name, name)
        for name, (major, minor) in driver.numbers().items():
            layer.addfile(_node(f"nodes/{flat(name)}", major, minor))
    pause = path.with_name("pause-layer.tar")
    with tarfile.open(pause, "w") as layer:
        layer.add("/bin/busybox", "bin/busybox")
    write_archive(
        path,
        [
            (PLAIN, debian, {"Env": [PATH], "Cmd": ["/bin/sh"]}),
            (CUDA, debian, {"Env": [PATH, "NVIDIA_VISIBLE_DEVICES=all"]}),
            (PAUSE, pause, {"Cmd": ["/bin/busybox", "sleep", "100000"]}),
        ],
    )
    debian.unlink()
    pause.unlink()


def write_archive(path: Path, images: Sequence[tuple[str, Path, Mapping[str, Any]]]) -> None:
    """Write an archive of images, each with its name, its one layer and its settings."""
    with tarfile.open(path, "w") as archive:
        index = [_add_image(archive, *image) for image in images]
        _add_bytes(archive, "manifest.json", json.dumps(index).encode())


def _wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if member.name.removeprefix("./").startswith(OMITTED) else member


def _node(name: str, major: int, minor: int) -> tarfile.TarInfo:
    node = tarfile.TarInfo(name)
    node.type = tarfile.CHRTYPE
    node.mode = 0o666
    node.devmajor, node.devminor = major, minor
    return node


def _add_image(
    archive: tarfile.TarFile, name: str, layer: Path, settings: Mapping[str, Any]
) -> dict[str, Any]:
    digest = hashlib.sha256(layer.read_bytes()).hexdigest()
    if layer.name not in archive.getnames():
        archive.add(layer, layer.name)
    machine = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    document = {
        "architecture": machine,
        "os": "linux",
        "config": settings,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "nvhook's tests"}],
    }
    data = json.dumps(document).encode()
    configuration = f"{hashlib.sha256(data).hexdigest()}.json"
    _add_bytes(archive, configuration, data)
    return {"Config": configuration, "RepoTags": [name], "Layers": [layer.name]}


def _add_bytes(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IRUSR | stat.S_IWUSR
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
