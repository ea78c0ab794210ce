"""What may be otherwise at the next start: places of a world, and what there may be at each."""

import os
import random
import shutil
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nvhook.core.catalog import BINARY_DIRECTORIES
from nvhook.formats.ldcache_splice import splice
from nvhook.sim.elf_writer import ABIS, shared_library
from tests.cuda_note import with_note
from tests.native.world import GPUS, NEWER, TRIPLET, VERSION, World, remove

MACHINE = os.uname().machine
FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}[MACHINE]
COMPAT = "590.44.01"
Make = Callable[[Path], None]


@dataclass(frozen=True)
class Place:
    """A path and what may be there, by name; the first is how it begins."""

    path: Path
    states: dict[str, Make]


# ---- what may be made ----


def nothing(path: Path) -> None:
    remove(path)


def as_it_is(path: Path) -> None:
    pass


def text(content: str | bytes) -> Make:
    """Return what writes a text into the file that is there, or makes it."""
    data = content.encode() if isinstance(content, str) else content

    def make(path: Path) -> None:
        if path.is_symlink() or path.is_dir() or (path.exists() and not path.is_file()):
            remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return make


def in_place(content: bytes) -> Make:
    """Return what changes a file's content and nothing that stat tells but the change time."""

    def make(path: Path) -> None:
        if not path.is_file() or path.is_symlink():
            text(content)(path)
        before = path.stat()
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return make


def replaced(content: bytes | None = None) -> Make:
    """Return what puts another file of the same name, and perhaps content, there."""

    def make(path: Path) -> None:
        old = path.read_bytes() if content is None and path.is_file() else content
        new = path.with_name(f"{path.name}.new")
        new.write_bytes(old or b"")
        if path.is_dir() and not path.is_symlink():
            remove(path)
        new.rename(path)

    return make


def directory(path: Path) -> None:
    remove(path)
    path.mkdir(parents=True)


def link(target: str) -> Make:
    def make(path: Path) -> None:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)

    return make


def moved(make_first: Make) -> Make:
    """Return what leaves a link where something was, to the same thing under another name."""

    def make(path: Path) -> None:
        if path.is_symlink() or not path.exists():
            remove(path)
            make_first(path)
        aside = path.with_name(f"{path.name}.aside")
        remove(aside)
        path.rename(aside)
        path.symlink_to(aside.name)

    return make


def moved_back(otherwise: Make) -> Make:
    """Return what makes such a link the thing itself."""

    def make(path: Path) -> None:
        aside = path.with_name(f"{path.name}.aside")
        if path.is_symlink() and aside.exists():
            path.unlink()
            aside.rename(path)
        else:
            otherwise(path)

    return make


def node(
    major: int, minor: int, mode: int = 0o666, kind: int = stat.S_IFCHR, owner: int = 0
) -> Make:
    def make(path: Path) -> None:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, kind | mode, os.makedev(major, minor))
        path.chmod(mode)
        os.chown(path, owner, owner)

    return make


def a_socket(path: Path) -> None:
    remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def owned(owner: int) -> Make:
    def make(path: Path) -> None:
        directory(path)
        os.chown(path, owner, owner)

    return make


def all_of(*makes: tuple[str, Make]) -> Make:
    """Return what makes several things below a directory, which is empty before."""

    def make(path: Path) -> None:
        directory(path)
        for name, each in makes:
            each(path / name)

    return make


def copy(source: str | Path, target: str | Path) -> None:
    if stat.S_ISSOCK(os.lstat(source).st_mode):
        a_socket(Path(target))
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def copy_tree(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, copy_function=copy)


def copy_of(source: Path) -> Make:
    """Return what makes a copy of a tree or a file."""

    def make(path: Path) -> None:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            copy_tree(source, path)
        else:
            copy(source, path)

    return make


def hard_link(source: Path) -> Make:
    def make(path: Path) -> None:
        remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.hardlink_to(source)

    return make


def library(soname: str, drivers: tuple[int, ...] = ()) -> bytes:
    image = shared_library(ABIS[MACHINE], soname, "the image's")
    return with_note(image, list(drivers)) if drivers else image


def compat(version: str, data: bytes, *more: tuple[str, Make]) -> Make:
    name = f"libcuda.so.{version}"
    return all_of(
        (name, text(data)), ("libcuda.so.1", link(name)), ("libcuda.so", link(name)), *more
    )


def cache(*paths: str) -> bytes:
    return splice(b"", [(path.rpartition("/")[2], path, FLAGS) for path in paths])


# ---- where ----


def places(world: World) -> dict[str, Place]:
    """Return all places by name, as they are when the world begins."""
    return {
        **_of_settings(world),
        **_of_texts(world),
        **_of_nodes(world),
        **_of_driver_files(world),
        **_of_mig(world),
        **_of_features(world),
        **_of_image(world),
    }


def _of_settings(world: World) -> dict[str, Place]:
    base = world.config_text
    settings = {
        "no-rules": "device-rules = false\n",
        "listed-only": "inject-unlisted-driver-libraries = false\n",
        "no-compat": "cuda-forward-compatibility = false\n",
        "compute-only": 'supported-driver-capabilities = ["compute"]\n',
        "swarm": 'swarm-resource = ["DOCKER_RESOURCE_GPU"]\n',
        "comment": "# changes nothing\n",
        "no-recordings": "recordings = false\n",
    }
    states = {name: text(base + each) for name, each in settings.items()}
    return {"settings": Place(world.settings, {"begin": text(base), **states})}


def _with(path: Path, states: dict[str, Make], also: Path, data: bytes) -> Place:
    """Return a place where everything but the beginning comes with a file elsewhere."""

    def both(make: Make) -> Make:
        def made(path: Path) -> None:
            make(path)
            text(data)(also)

        return made

    def begin(path: Path) -> None:
        states["begin"](path)
        remove(also)

    more = {name: both(make) for name, make in states.items() if name != "begin"}
    return Place(path, {"begin": begin, **more})


def _of_texts(world: World) -> dict[str, Place]:
    host = world.host
    proc = host / "proc"
    driver = proc / "driver/nvidia"
    devices = (proc / "devices").read_text()
    version = (driver / "version").read_text()
    newer = (world.base / "newer/proc/driver/nvidia/version").read_text()
    params = (driver / "params").read_text()
    registry = (driver / "registry").read_text()
    gpu = driver / "gpus" / GPUS[0] / "information"
    information = gpu.read_text()
    another = "22222222-2222-4222-8222-222222222222\n"
    found = {
        "devices": Place(
            proc / "devices",
            {
                "begin": text(devices),
                "fuse": text(devices.replace("252 tpm\n", "252 tpm\n253 fuse\n")),
                "uvm": text(devices.replace("511 nvidia-uvm", "403 nvidia-uvm")),
                "caps": text(devices.replace("510 nvidia-caps\n", "402 nvidia-caps\n")),
                "no-caps": text(devices.replace("510 nvidia-caps\n", "")),
                "none": nothing,
            },
        ),
        "version": Place(
            driver / "version",
            {
                "begin": text(version),
                "newer": text(newer),
                "build": text(version.replace("GCC version", "gcc version")),
                "odd": text("NVRM version: nothing\n"),
                "none": nothing,
            },
        ),
        "sys-version": Place(
            host / "sys/module/nvidia/version",
            {"begin": text(f"{VERSION}\n"), "newer": text(f"{NEWER}\n"), "none": nothing},
        ),
        "params": Place(
            driver / "params",
            {
                "begin": text(params),
                "other": text(params.replace("EnableMSI: 1", "EnableMSI: 0")),
                "none": nothing,
            },
        ),
        "registry": Place(
            driver / "registry",
            {"begin": text(registry), "other": text('Binary: "x"\n'), "none": nothing},
        ),
        "boot": Place(
            proc / "sys/kernel/random/boot_id",
            {
                "begin": text(boot := (proc / "sys/kernel/random/boot_id").read_text()),
                "other": text(another),
                "none": nothing,
            },
        ),
        # What nothing but a new boot, or another loader cache, makes the driver's files looked for.
        "boot-to-more": _with(
            proc / "sys/kernel/random/boot_id",
            {"begin": text(boot), "other": text(another)},
            host / f"root/usr/lib/{TRIPLET}/libnvidia-afterboot.so.{VERSION}",
            library("libnvidia-afterboot.so.1"),
        ),
        # Only what the driver says of a GPU: found out once per boot, as /proc has the GPU.
        "minor": Place(
            gpu,
            {
                "begin": text(information),
                "five": text(information.replace("Device Minor: \t 2", "Device Minor: \t 5")),
            },
        ),
    }
    aside = world.base / "gpus"
    copy_tree(driver / "gpus", aside)
    for number, name in enumerate(GPUS):
        states = {"begin": copy_of(aside / name), "none": nothing}
        if number:
            found[f"gpu{number}"] = Place(driver / "gpus" / name, states)
    found["gpus"] = Place(driver / "gpus", {"begin": copy_of(aside), "none": directory})
    return found


def _of_nodes(world: World) -> dict[str, Place]:
    dev = world.host / "dev"
    found = {}
    for name in ("nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "nvidia-modeset"):
        number = (dev / name).stat().st_rdev
        major, minor = os.major(number), os.minor(number)
        found[name] = Place(
            dev / name,
            {
                "begin": node(major, minor),
                "again": node(major, minor),
                "minor": node(major, minor + 1),
                "major": node(major + 1, minor),
                "mode": node(major, minor, 0o600),
                "owner": node(major, minor, owner=44),
                "block": node(major, minor, kind=stat.S_IFBLK),
                "file": text(""),
                "link": moved(node(major, minor)),
                "none": nothing,
            },
        )
    for path in (*dev.glob("nvidia-nv*"), *dev.glob("infiniband/*"), dev / "nvidia-uvm-tools"):
        major, minor = _numbers(path)
        name = str(path.relative_to(dev))
        found[name] = Place(path, {"begin": node(major, minor), "minor": node(major, minor + 1)})
    found["nvidia5"] = Place(dev / "nvidia5", {"begin": nothing, "node": node(195, 5)})
    found["dxg"] = Place(dev / "dxg", {"begin": nothing, "node": node(10, 125)})
    render = (dev / "dri/renderD128").stat().st_rdev
    numbers = os.major(render), os.minor(render)
    by_path = f"pci-{GPUS[0]}-render"
    drm = world.host / f"sys/bus/pci/devices/{GPUS[0]}/drm"
    copy_tree(drm, world.base / "drm")
    found |= {
        "render": Place(
            dev / "dri/renderD128",
            {
                "begin": node(*numbers),
                "minor": node(numbers[0], 140),
                "mode": node(*numbers, 0o660),
                "none": nothing,
            },
        ),
        "by-path": Place(
            dev / f"dri/by-path/{by_path}",
            {
                "begin": link("../renderD128"),
                "other": link("../renderD129"),
                "none": nothing,
            },
        ),
        "drm-number": Place(
            drm / "renderD128/dev",
            {
                "begin": text(f"{numbers[0]}:{numbers[1]}\n"),
                "other": text(f"{numbers[0]}:1\n"),
                "none": nothing,
            },
        ),
        "drm-more": Place(drm / "renderD129", {"begin": nothing, "there": directory}),
        "drm": Place(
            drm,
            {
                "begin": copy_of(world.base / "drm"),
                "more": all_of(("renderD128/dev", text("")), ("renderD129", directory)),
                "none": nothing,
            },
        ),
    }
    return found


def _of_driver_files(world: World) -> dict[str, Place]:
    root = world.host / "root"
    cuda = root / f"usr/lib/{TRIPLET}/libcuda.so.{VERSION}"
    copy_tree(root, world.base / "root")
    data = (root / "etc/ld.so.cache").read_bytes()
    persistenced = root / "run/nvidia-persistenced"
    icd = root / "etc/OpenCL/vendors/nvidia.icd"
    smi = root / "usr/bin/nvidia-debugdump"
    return {
        "libcuda": Place(
            cuda,
            {
                "begin": copy_of(cuda_aside := world.base / "root" / cuda.relative_to(root)),
                "replaced": replaced(),
                "in-place": in_place(cuda_aside.read_bytes()[:-1] + b"x"),
                "none": nothing,
            },
        ),
        "unlisted": Place(
            cuda.with_name(f"libnvidia-brandnew.so.{VERSION}"),
            {"begin": nothing, "there": text(library("libnvidia-brandnew.so.1"))},
        ),
        "cache-with-more": _with(
            root / "etc/ld.so.cache",
            {"begin": text(data), "again": replaced(), "touched": text(data)},
            cuda.with_name(f"libnvidia-cached.so.{VERSION}"),
            library("libnvidia-cached.so.1"),
        ),
        # What nvhook remembers of the host, found out anew.
        "forgotten": _with(
            world.host / "run/inventory.json",
            {"begin": as_it_is, "none": nothing},
            cuda.with_name(f"libnvidia-forgotten.so.{VERSION}"),
            library("libnvidia-forgotten.so.1"),
        ),
        **_of_watched(root),
        "cache": Place(
            root / "etc/ld.so.cache",
            {
                "begin": text(data),
                "again": replaced(),
                "in-place": in_place(data[:-1] + b"\0"),
                "none": nothing,
            },
        ),
        "program": Place(
            smi,
            {
                "begin": copy_of(world.base / "root" / smi.relative_to(root)),
                "replaced": replaced(),
                "none": nothing,
            },
        ),
        "icd": Place(icd, {"begin": text(icd.read_text()), "none": nothing}),
        "update": Place(
            root,
            {
                "begin": copy_of(world.base / "root"),
                "newer": copy_of(world.base / "newer/root"),
                "none": directory,
            },
        ),
        "persistenced": Place(
            persistenced / "socket",
            {
                "begin": moved_back(a_socket),
                "again": a_socket,
                "link": moved(a_socket),
                "elsewhere": link("../nvidia-fabricmanager/socket"),
                "file": text(""),
                "none": nothing,
            },
        ),
        "persistenced-directory": Place(
            persistenced,
            {
                "begin": moved_back(all_of(("socket", a_socket))),
                "link": moved(all_of(("socket", a_socket))),
                "none": nothing,
            },
        ),
        "old-persistenced": Place(
            root / "var/run/nvidia-persistenced/socket",
            {"begin": nothing, "there": a_socket, "link": link("/run/nvidia-persistenced/socket")},
        ),
        "fabricmanager": Place(
            root / "run/nvidia-fabricmanager/socket",
            {"begin": a_socket, "again": a_socket, "none": nothing},
        ),
        "mps": Place(
            root / "tmp/nvidia-mps",
            {
                "begin": moved_back(directory),
                "again": directory,
                "link": moved(directory),
                "owned": owned(1000),
                "socket": a_socket,
                "file": text(""),
                "none": nothing,
            },
        ),
        "tegra": Place(root / "etc/nv_tegra_release", {"begin": nothing, "there": text("# R36\n")}),
    }


def _of_watched(root: Path) -> dict[str, Place]:
    """Return a file in each directory whose time stamp is looked at, and no file of the host's."""
    (root / "usr/bin/nvidia-imex").unlink()  # of a package of its own; the first found counts

    def there(path: Path) -> None:
        text("#!/bin/sh\n")(path)
        path.chmod(0o755)

    def gone(path: Path) -> None:
        remove(path)
        for above in path.parents:
            if above == root or not above.is_dir() or [*above.iterdir()]:
                break
            above.rmdir()

    names = dict.fromkeys(BINARY_DIRECTORIES, "nvidia-imex") | {
        "/etc/OpenCL/vendors": "nvidia.icd",
        "/etc/vulkan/icd.d": "nvidia_layers.json",
        "/usr/share/vulkan/icd.d": "nvidia_layers.json",
        "/usr/share/glvnd/egl_vendor.d": "10_nvidia.json",
    }
    found = {}
    for directory_, name in names.items():
        path = root / directory_[1:] / name
        data = path.read_bytes() if path.exists() else None
        states = {"begin": gone, "there": there}
        if data is not None:
            states = {"begin": text(data), "gone": gone}
        found[f"in {directory_}"] = Place(path, states)
    return found


def _of_mig(world: World) -> dict[str, Place]:
    driver = world.host / "proc/driver"
    tree = driver / "nvidia/capabilities"
    copy_tree(tree, world.base / "capabilities")
    gi = tree / "gpu2/mig/gi3"
    minor = int((gi / "access").read_text().split()[1])
    state = (world.host / "state").read_text()
    lines = {line.partition("=")[0]: line.partition("=")[2] for line in state.splitlines()}
    swapped = state.replace(f"gpu0.mig0={lines['gpu0.mig0']}", "gpu0.mig9=")
    swapped = swapped.replace("gpu0.mig1=", "gpu0.mig0=").replace(
        "gpu0.mig9=", f"gpu0.mig1={lines['gpu0.mig0']}"
    )
    minors = (driver / "nvidia-caps/mig-minors").read_text()
    caps = world.host / f"dev/nvidia-caps/nvidia-cap{minor}"
    major = os.major(caps.stat().st_rdev)
    config = tree / "mig/config"
    return {
        "instance": Place(
            gi,
            {
                "begin": copy_of(world.base / "capabilities/gpu2/mig/gi3"),
                "again": copy_of(world.base / "capabilities/gpu2/mig/gi3"),
                "none": nothing,
            },
        ),
        "compute-instance": Place(
            gi / "ci0",
            {
                "begin": copy_of(world.base / "capabilities/gpu2/mig/gi3/ci0"),
                "again": copy_of(world.base / "capabilities/gpu2/mig/gi3/ci0"),
                "none": nothing,
            },
        ),
        "partitioned": Place(
            tree / "gpu2",
            {"begin": copy_of(world.base / "capabilities/gpu2"), "none": nothing},
        ),
        # Before an instance comes or goes, nobody asks NVML again.
        "order": Place(world.host / "state", {"begin": text(state), "swapped": text(swapped)}),
        "renumbered": _with_order(
            world,
            Place(
                gi / "ci0",
                {
                    "begin": copy_of(world.base / "capabilities/gpu2/mig/gi3/ci0"),
                    "again": anew(world.base / "capabilities/gpu2/mig/gi3/ci0"),
                },
            ),
            state,
            swapped,
        ),
        "forgotten-order": _with_order(
            world,
            Place(world.host / "run/mig.json", {"begin": as_it_is, "none": nothing}),
            state,
            swapped,
        ),
        "new-instance": _with_order(
            world,
            Place(
                gi.with_name("gi4"),
                {"begin": nothing, "there": copy_of(world.base / "capabilities/gpu2/mig/gi3")},
            ),
            state,
            f"{state}gpu0.mig2=MIG-33333333-3333-4333-8333-333333333333 4 0 300 301 2g.20gb\n",
        ),
        "minors": Place(
            driver / "nvidia-caps/mig-minors",
            {
                "begin": text(minors),
                "other": text(minors.replace(f"gpu2/gi3/access {minor}", "gpu2/gi3/access 2")),
                "none": nothing,
            },
        ),
        "capability": Place(
            caps,
            {
                "begin": node(major, minor, 0o444),
                "minor": node(major, minor + 40, 0o444),
                "mode": node(major, minor, 0o400),
                "none": nothing,
            },
        ),
        "manage": Place(
            config,
            {
                "begin": text(config.read_text()),
                "other": text(config.read_text().replace("Minor: 1", "Minor: 2")),
                "none": nothing,
            },
        ),
        "manage-node": Place(
            world.host / "dev/nvidia-caps/nvidia-cap1",
            {"begin": node(major, 1, 0o400), "minor": node(major, 3, 0o400), "none": nothing},
        ),
    }


def anew(source: Path) -> Make:
    """Return what makes something anew while the old is still there: with another inode."""

    def make(path: Path) -> None:
        new = path.with_name(f".{path.name}")
        copy_of(source)(new)
        remove(path)
        new.rename(path)

    return make


def _with_order(world: World, place: Place, before: str, after: str) -> Place:
    """Return a place, with another order of the MIG devices for NVML."""

    def both(make: Make, order: str) -> Make:
        def made(path: Path) -> None:
            make(path)
            text(order)(world.host / "state")

        return made

    states = {
        name: both(make, before if name == "begin" else after)
        for name, make in place.states.items()
    }
    return Place(place.path, states)


def _of_features(world: World) -> dict[str, Place]:
    dev, root = world.host / "dev", world.host / "root"
    major, minor = _numbers(dev / "nvidia-fs0")
    channels = _numbers(dev / "nvidia-caps-imex-channels/channel0")[0]
    udev = world.host / "run/udev"
    return {
        "nvidia-fs": Place(
            dev / "nvidia-fs0",
            {
                "begin": node(major, minor),
                "minor": node(major, minor + 9),
                "mode": node(major, minor, 0o600),
                "none": nothing,
            },
        ),
        "more-nvidia-fs": Place(dev / "nvidia-fs7", {"begin": nothing, "node": node(major, 7)}),
        "infiniband": Place(dev / "infiniband/uverbs7", {"begin": nothing, "node": node(231, 199)}),
        "gdrdrv": Place(
            dev / "gdrdrv",
            {
                "begin": node(*_numbers(dev / "gdrdrv")),
                "minor": node(231, 1),
                "none": nothing,
            },
        ),
        "channel": Place(
            dev / "nvidia-caps-imex-channels/channel0",
            {"begin": node(channels, 0), "minor": node(channels, 9), "none": nothing},
        ),
        "new-channel": Place(
            dev / "nvidia-caps-imex-channels/channel7",
            {"begin": nothing, "node": node(channels, 7)},
        ),
        "cufile": Place(
            root / "etc/cufile.json",
            {
                "begin": moved_back(text("{}\n")),
                "replaced": replaced(),
                "link": moved(text("{}\n")),
                "in-place": in_place(b"{}\t"),
                "directory": directory,
                "none": nothing,
            },
        ),
        "udev": Place(
            udev,
            {
                "begin": moved_back(directory),
                "link": moved(directory),
                "again": directory,
                "none": nothing,
            },
        ),
    }


def _numbers(path: Path) -> tuple[int, int]:
    number = path.stat().st_rdev
    return os.major(number), os.minor(number)


def _of_image(world: World) -> dict[str, Place]:
    image = world.image
    lib = f"usr/lib/{TRIPLET}"
    cuda = library("libcuda.so.1", (535, 550))
    elsewhere = library("libcuda.so.1", (535, 560))  # of the same size
    begins_odd = ("libodd.so.1", link("nothing"))
    place = image / "usr/local/cuda/compat"
    musl = f"ld-musl-{MACHINE}"
    host_cuda = world.host / f"root/{lib}/libcuda.so.{VERSION}"
    return {
        "debian": Place(
            image / "etc/debian_version",
            {"begin": nothing, "there": text("12\n"), "dangling": link("nothing")},
        ),
        "lib32": Place(
            image / "usr/lib32", {"begin": nothing, "there": directory, "link": link("lib")}
        ),
        "compat": Place(
            place,
            {
                "begin": nothing,
                "there": compat(COMPAT, cuda),
                "not-for-550": compat(COMPAT, elsewhere),
                "older": compat("535.104.05", library("libcuda.so.1")),
                "no-note": compat(COMPAT, library("libcuda.so.1")),
                "more": compat(COMPAT, cuda, ("libptx.so.1", text(library("libptx.so.1")))),
                "two": compat(COMPAT, cuda, ("libcuda.so.580.65.06", text(cuda))),
                "dangling": compat(COMPAT, cuda, begins_odd),
                "loop": compat(COMPAT, cuda, ("libodd.so.1", link("libodd.so.1"))),
                "through-a-file": compat(COMPAT, cuda, ("libodd.so.1", link("libcuda.so/x"))),
                "fifo": compat(COMPAT, cuda, ("libodd.so.1", os.mkfifo)),
                "link": moved(compat(COMPAT, cuda)),
                "line-break": compat(COMPAT, cuda, ("libx.so\nhas\t/\t1", text(cuda))),
            },
        ),
        "compat-libcuda": Place(
            place / f"libcuda.so.{COMPAT}",
            {
                "begin": text(cuda),
                "in-place": in_place(elsewhere),
                "replaced": replaced(elsewhere),
                "broken": text(b"no ELF"),
            },
        ),
        "image-cache": Place(
            image / "etc/ld.so.cache",
            {
                "begin": nothing,
                "there": text(cache(f"/{lib}/libc.so.6")),
                "short": text(cache(f"/lib/{TRIPLET}/libc.so.6")),
                "odd": text("no cache"),
                "directory": directory,
            },
        ),
        "lib": Place(
            image / "lib",
            {"begin": link("usr/lib"), "directory": all_of((TRIPLET, directory))},
        ),
        "lib64": Place(
            image / "lib64",
            {"begin": nothing, "link": link("usr/lib64"), "directory": directory},
        ),
        "usr-lib64": Place(
            image / "usr/lib64", {"begin": directory, "link": link("lib"), "none": nothing}
        ),
        "musl": Place(image / f"usr/lib/{musl}.so.1", {"begin": nothing, "there": text("\x7fELF")}),
        "musl-path": Place(
            image / f"etc/{musl}.path",
            {"begin": nothing, "there": text("/lib:/usr/lib64\n"), "other": text("/opt/lib\n")},
        ),
        "proc": Place(
            image / "proc/driver/nvidia",
            {"begin": directory, "none": nothing},
        ),
        "image-libcuda": Place(
            image / f"usr/lib64/libcuda.so.{VERSION}",
            {"begin": nothing, "hosts": hard_link(host_cuda), "own": text("own")},
        ),
    }


def furnish(world: World) -> dict[str, Place]:
    """Put an image into a world; return the places."""
    (world.image / f"usr/lib/{TRIPLET}").mkdir(parents=True)
    (world.image / "etc").mkdir()
    found = places(world)
    for name in ("lib", "usr-lib64", "proc"):
        place = found[name]
        place.path.parent.mkdir(parents=True, exist_ok=True)
        place.states["begin"](place.path)
    return found


def change(places: dict[str, Place], name: str, state: str) -> None:
    """Let something be at a place."""
    place = places[name]
    try:
        place.states[state](place.path)
    except (FileExistsError, FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass  # another change is in the way: as good as any


class Walk:
    """Changes by chance, of which few are away from the beginning at a time.

    A host where much is wrong has no GPU for anybody, and nothing to tell.
    """

    def __init__(self, chance: random.Random, places: dict[str, Place]) -> None:
        self.chance = chance
        self.places = places
        self.away: list[str] = []
        self.done: list[str] = []

    def step(self) -> None:
        """Change something, or put something back."""
        if self.away and self.chance.random() < 0.3 * len(self.away):
            name, state = self.chance.choice(self.away), "begin"
        else:
            name = self.chance.choice(sorted(self.places))
            state = self.chance.choice(sorted(self.places[name].states))
        self.away = [each for each in self.away if each != name]
        self.away += [name] if state != "begin" else []
        self.done.append(f"{name}={state}")
        change(self.places, name, state)
