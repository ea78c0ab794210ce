"""The inventory's cache file: when it holds, when it does not, and what its reader may cost."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nvhook.errors import HostError
from nvhook.formats.gpu_information import UNKNOWN_UUID
from nvhook.host import discovery, inventory_cache
from nvhook.host.discovery import discover

X86 = "/usr/lib/x86_64-linux-gnu"
REPOSITORY = Path(inventory_cache.__file__).parents[2]


@pytest.fixture
def gpu_host(host):
    """A host with a driver, one GPU, a library, a program and a loader cache."""
    host.driver()
    host.gpu("0000:65:00.0", 0)
    library = f"{X86}/libcuda.so.550.54.15"
    host.library(library, "libcuda.so.1")
    host.cache([("libcuda.so.1", "libc6,x86-64", library)])
    host.put("/usr/bin/nvidia-smi", mode=0o755)
    return host


@pytest.fixture
def discoveries(monkeypatch) -> list[tuple[str, ...]]:
    """The calls of the real discover()."""
    calls: list[tuple[str, ...]] = []

    def counted(*roots: str):
        calls.append(roots)
        return discover(*roots)

    monkeypatch.setattr(discovery, "discover", counted)
    return calls


def load(host):
    return inventory_cache.load(*host.roots, str(host.state))


def cache_file(host) -> Path:
    return host.state / "inventory.json"


def test_second_load_discovers_nothing_and_gives_the_same(gpu_host, discoveries) -> None:
    first = load(gpu_host)
    second = load(gpu_host)
    assert second == first == discover(*gpu_host.roots)
    assert [library.name for library in second.libraries] == ["libcuda.so"]
    assert len(discoveries) == 1


def test_file_and_directory_modes(gpu_host) -> None:
    mask = os.umask(0o077)
    try:
        load(gpu_host)
    finally:
        os.umask(mask)
    assert cache_file(gpu_host).stat().st_mode & 0o7777 == 0o644
    assert gpu_host.state.stat().st_mode & 0o7777 == 0o755
    assert os.listdir(gpu_host.state) == ["inventory.json"]


def update_driver(host) -> None:
    host.driver("550.90.07")
    host.library(f"{X86}/libcuda.so.550.90.07", "libcuda.so.1")


def rewrite_loader_cache(host) -> None:
    replacement = host.root / "etc/new"
    shutil.copy(host.root / "etc/ld.so.cache", replacement)
    replacement.rename(host.root / "etc/ld.so.cache")


CHANGES = {
    "driver": update_driver,
    "boot": lambda host: host.proc_text("sys/kernel/random/boot_id", "another\n"),
    "loader-cache-replaced": rewrite_loader_cache,
    "loader-cache-removed": lambda host: (host.root / "etc/ld.so.cache").unlink(),
    "loader-cache-touched": lambda host: os.utime(host.root / "etc/ld.so.cache", ns=(1, 1)),
    "program-installed": lambda host: host.put("/usr/bin/nvidia-debugdump", b"#!", 0o755),
    "icd-installed": lambda host: host.put("/usr/share/vulkan/icd.d/nvidia_icd.json"),
    "major": lambda host: host.proc_text("devices", "195 nvidia\n510 nvidia-uvm\n"),
    "gpu-added": lambda host: host.gpu("0000:66:00.0", 1),
    "gpu-gone": lambda host: (host.proc / "driver/nvidia/gpus").rename(host.proc / "gone"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_change_of_the_host_is_noticed(gpu_host, discoveries, change) -> None:
    load(gpu_host)
    change(gpu_host)
    assert load(gpu_host) == discover(*gpu_host.roots)
    assert len(discoveries) == 2
    assert load(gpu_host) == discover(*gpu_host.roots)
    assert len(discoveries) == 2


@pytest.mark.parametrize("root", ["root", "dev", "proc", "sys"])
def test_other_roots_have_another_inventory(gpu_host, discoveries, root: str) -> None:
    load(gpu_host)
    copy = gpu_host.root.parent / "copy"
    shutil.copytree(getattr(gpu_host, root), copy, symlinks=True)
    roots = [str(copy) if path.endswith(f"/{root}") else path for path in gpu_host.roots]
    inventory_cache.load(*roots, str(gpu_host.state))
    assert len(discoveries) == 2


def test_other_lines_of_proc_devices_do_not_matter(gpu_host, discoveries) -> None:
    load(gpu_host)
    text = "  1 mem\n195 nvidia\n500 something\n511 nvidia-uvm\n"
    gpu_host.proc_text("devices", text)
    load(gpu_host)
    assert len(discoveries) == 1


def test_texts_and_sockets_are_read_anew(gpu_host, discoveries) -> None:
    load(gpu_host)
    gpu_host.proc_text("driver/nvidia/params", "ModifyDeviceFiles: 0\n")
    (gpu_host.root / "tmp/nvidia-mps").mkdir(parents=True)
    inventory = load(gpu_host)
    assert inventory.proc_files["params"] == "ModifyDeviceFiles: 0\n"
    assert [file.name for file in inventory.files] == ["nvidia-smi", "/tmp/nvidia-mps"]
    assert len(discoveries) == 1


def test_socket_that_was_there_at_discovery_may_go(gpu_host, discoveries) -> None:
    (gpu_host.root / "tmp/nvidia-mps").mkdir(parents=True)
    for _ in range(2):
        assert [file.name for file in load(gpu_host).files] == ["nvidia-smi", "/tmp/nvidia-mps"]
    (gpu_host.root / "tmp/nvidia-mps").rmdir()
    assert [file.name for file in load(gpu_host).files] == ["nvidia-smi"]
    assert len(discoveries) == 1


@pytest.mark.root
def test_nodes_are_read_anew(gpu_host, discoveries, require) -> None:
    require(os.geteuid() == 0, "mknod needs root")
    assert load(gpu_host).nodes == ()
    gpu_host.node("nvidia0", 195, 0, mode=0o660, gid=44)
    (node,) = load(gpu_host).nodes
    assert (node.name, node.major, node.minor) == ("nvidia0", 195, 0)
    assert (node.mode, node.gid) == (0o660, 44)
    assert len(discoveries) == 1


def test_unloaded_driver_is_noticed(gpu_host) -> None:
    load(gpu_host)
    (gpu_host.proc / "driver/nvidia/version").unlink()
    with pytest.raises(HostError, match="no NVIDIA driver is loaded"):
        load(gpu_host)


def test_uuid_that_the_driver_learns_later_is_noticed(gpu_host, discoveries) -> None:
    gpu_host.gpu("0000:65:00.0", 0, uuid=UNKNOWN_UUID)
    assert load(gpu_host).gpus[0].uuid == UNKNOWN_UUID
    load(gpu_host)
    assert len(discoveries) == 1
    gpu_host.gpu("0000:65:00.0", 0, uuid="GPU-14ccb8b5-408a-580d-a541-65d7b24f2a05")
    assert load(gpu_host).gpus[0].uuid == "GPU-14ccb8b5-408a-580d-a541-65d7b24f2a05"
    assert len(discoveries) == 2


def change_content(host, **changes: object) -> None:
    content = json.loads(cache_file(host).read_text())
    cache_file(host).write_text(json.dumps({**content, **changes}))


GPU = [0, "GPU-x", 0, "0000:65:00.0", "evil"]
BROKEN = {
    "empty": lambda host: cache_file(host).write_text(""),
    "truncated": lambda host: os.truncate(cache_file(host), 100),
    "not-json": lambda host: cache_file(host).write_text("{'key'"),
    "not-utf8": lambda host: cache_file(host).write_bytes(b'{"key": "\xff"}'),
    "not-an-object": lambda host: cache_file(host).write_text("[]"),
    "deep": lambda host: cache_file(host).write_text("[" * 100_000),
    "no-gpus": lambda host: change_content(host, gpus=None),
    "short-row": lambda host: change_content(host, gpus=[GPU[:4]]),
    "long-row": lambda host: change_content(host, gpus=[[*GPU, 1]]),
    "row-no-list": lambda host: change_content(host, gpus=["abcde"]),
    "wrong-type": lambda host: change_content(host, gpus=[["0", *GPU[1:]]]),
    "bool-for-int": lambda host: change_content(host, gpus=[[False, *GPU[1:]]]),
    "cuda-version": lambda host: change_content(host, cuda_version=12),
    "key": lambda host: change_content(host, gpus=[GPU], key=["1"]),
    "key-no-list": lambda host: change_content(host, gpus=[GPU], key=None),
    "too-large": lambda host: cache_file(host).write_text(
        cache_file(host).read_text().replace("NVIDIA L4", "evil") + " " * (4 << 20)
    ),
}


@pytest.mark.parametrize("damage", BROKEN.values(), ids=BROKEN.keys())
def test_broken_file_is_ignored_and_replaced(gpu_host, discoveries, damage) -> None:
    good = load(gpu_host)
    damage(gpu_host)
    assert load(gpu_host) == good
    assert len(discoveries) == 2
    assert load(gpu_host) == good
    assert len(discoveries) == 2


def poison(host) -> str:
    return cache_file(host).read_text().replace("NVIDIA L4", "evil")


def by_link(host) -> None:
    (host.state / "other").write_text(poison(host))
    cache_file(host).unlink()
    cache_file(host).symlink_to("other")


def by_mode(mode: int):
    def change(host) -> None:
        cache_file(host).write_text(poison(host))
        cache_file(host).chmod(mode)

    return change


def by_fifo(host) -> None:
    cache_file(host).unlink()
    os.mkfifo(cache_file(host))


FOREIGN = {
    "link": by_link,
    "group-writable": by_mode(0o664),
    "world-writable": by_mode(0o646),
    "fifo": by_fifo,
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN.keys())
def test_file_that_others_may_have_written_is_ignored(gpu_host, discoveries, change) -> None:
    good = load(gpu_host)
    change(gpu_host)
    assert load(gpu_host) == good
    assert len(discoveries) == 2
    assert cache_file(gpu_host).lstat().st_mode == 0o100644


@pytest.mark.root
def test_file_of_another_user_is_ignored(gpu_host, discoveries, require) -> None:
    require(os.geteuid() == 0, "chown needs root")
    good = load(gpu_host)
    cache_file(gpu_host).write_text(poison(gpu_host))
    os.chown(cache_file(gpu_host), 1000, 1000)
    assert load(gpu_host) == good
    assert len(discoveries) == 2


def test_trusted_content_is_really_used(gpu_host) -> None:
    # without this, every test above could pass with a reader that never accepts a file
    load(gpu_host)
    cache_file(gpu_host).write_text(poison(gpu_host))
    assert load(gpu_host).gpus[0].model == "evil"


def test_state_directory_that_can_not_be_made(gpu_host, discoveries) -> None:
    gpu_host.state.write_text("a file where the directory should be")
    assert load(gpu_host) == load(gpu_host)
    assert len(discoveries) == 2


HOT = """
import sys
sys.path.insert(0, {repository!r})
from nvhook.host import inventory_cache
inventory = inventory_cache.load(*{roots!r}, {state!r})
print(inventory.gpus[0].model, *sys.modules)
"""


def test_reader_imports_nothing_heavy(gpu_host) -> None:
    load(gpu_host)
    code = HOT.format(repository=str(REPOSITORY), roots=gpu_host.roots, state=str(gpu_host.state))
    command = [sys.executable, "-I", "-S", "-c", code]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    bare = subprocess.run(
        [sys.executable, "-I", "-S", "-c", "import os, sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    extra = {name for name in output.split()[2:] if not name.startswith("nvhook")}
    assert extra - set(bare.split()) <= {"_blake2", "_json", "__future__", "errno"}
    ours = {name for name in output.split() if name.startswith("nvhook.host.")}
    assert ours == {
        f"nvhook.host.{name}" for name in ("driver_texts", "inventory_cache", "nodes", "root_paths")
    }
