"""The driver's files in the container: usable, not writable, and not in the image's way."""

import os
import shutil
import stat

import pytest

from nvhook.formats import ldcache
from nvhook.sim.driver import DEFAULT_VERSION
from tests.runtime.expectations import COMPUTE, ask_everything, assert_reaches, uuids

LIBDIR = "/usr/lib64"
TRIPLET = f"{os.uname().machine}-linux-gnu"
CUDA = f"libcuda.so.{DEFAULT_VERSION}"


def test_a_cuda_program_finds_its_gpu_in_debian(each_engine, bundles, debian, compiled):
    """The container's own loader reads the cache that nvhook wrote."""
    bundle = bundles(each_engine, debian)
    shutil.copy(compiled / "cuda_check", bundle.seen_root / "cuda_check")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/cuda_check")

    result = each_engine.start(bundle)

    assert result.stdout.splitlines() == ["cuInit = 0", "devices = 1", *uuids(bundle, (1,))]


def test_without_a_gpu_the_same_program_finds_no_library(runc, bundles, debian, compiled):
    bundle = bundles(runc, debian)
    shutil.copy(compiled / "cuda_check", bundle.seen_root / "cuda_check")
    bundle.args("/bin/sh", "-c", "/cuda_check; true")

    assert "libcuda.so.1: cannot open shared object file" in runc.start(bundle).stdout


def test_debian_reaches_exactly_what_it_asked_for(each_engine, bundles, debian):
    bundle = bundles(each_engine, debian)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,2")
    ask_everything(bundle)

    assert_reaches(bundle, each_engine.start(bundle), (0, 2), COMPUTE)


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
def test_debian_in_a_user_namespace(each_engine, bundles, debian, compiled, readonly):
    """An image that belongs to the host's root, as an engine without idmapped mounts has it."""
    bundle = bundles(each_engine, debian)
    shutil.copy(compiled / "cuda_check", bundle.seen_root / "cuda_check")
    bundle.config["root"]["readonly"] = readonly
    bundle.use_user_namespace(owned=False)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/cuda_check")

    assert uuids(bundle, (1,)) == each_engine.start(bundle).stdout.splitlines()[2:]


@pytest.mark.parametrize("debian_like", [False, True], ids=["lib64", "multiarch"])
def test_library_directories_that_the_image_lacks_are_made(runc, bundles, debian_like):
    bundle = bundles(runc)
    if debian_like:
        bundle.put("/etc/debian_version", b"12.0\n")
    directory = f"/usr/lib/{TRIPLET}" if debian_like else LIBDIR
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args(
        "/probe",
        "type",
        f"{directory}/{CUDA}",
        "open",
        f"{directory}/libcuda.so.1",
        "open",
        f"{directory}/libcuda.so",
        "type",
        f"{directory}/libcuda.so.1",
    )

    assert runc.start(bundle).answers == {
        f"type {directory}/{CUDA}": "file",
        f"open {directory}/libcuda.so.1": "OK",
        f"open {directory}/libcuda.so": "OK",
        f"type {directory}/libcuda.so.1": "link",
    }


def test_the_driver_cannot_be_written_or_changed(each_engine, bundles, driver):
    bundle = bundles(each_engine)
    node = f"/dev/nvidia{driver.gpus[1].minor}"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args(
        "/probe",
        "write",
        f"{LIBDIR}/{CUDA}",
        "write",
        "/usr/bin/nvidia-smi",
        "chmod",
        f"{LIBDIR}/{CUDA}",
        "666",
        "chmod",
        node,
        "600",
    )

    assert each_engine.start(bundle).answers == {
        f"write {LIBDIR}/{CUDA}": "EROFS",
        "write /usr/bin/nvidia-smi": "EROFS",
        f"chmod {LIBDIR}/{CUDA}": "EROFS",
        f"chmod {node}": "EROFS",
    }


def test_other_files_of_the_driver(runc, bundles):
    """Firmware, daemons' sockets, programs, and nothing of capabilities not asked for."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    paths = {
        f"/lib/firmware/nvidia/{DEFAULT_VERSION}/gsp_ga10x.bin": "file",
        "/run/nvidia-persistenced/socket": "socket",
        "/tmp/nvidia-mps": "directory",
        "/usr/bin/nvidia-cuda-mps-server": "file",
        f"{LIBDIR}/libnvidia-ml.so.1": "link",
        f"{LIBDIR}/libnvidia-encode.so.1": "ENOENT",
        f"{LIBDIR}/libGLX_nvidia.so.0": "ENOENT",
        "/usr/lib/libcuda.so.1": "ENOENT",
    }
    bundle.args("/probe", *(word for path in paths for word in ("type", path)))

    answers = runc.start(bundle).answers

    assert answers == {f"type {path}": kind for path, kind in paths.items()}


def test_files_of_the_image_are_shadowed_and_come_back(each_runtime, bundles, driver):
    bundle = bundles(each_runtime)
    library = bundle.put(f"{LIBDIR}/{CUDA}", b"an old driver")
    program = bundle.put("/usr/bin/nvidia-smi", b"#!/bin/sh\necho old\n", 0o755)
    old_link = bundle.link(f"{LIBDIR}/libcuda.so.1", "libcuda.so.418.0")
    node = bundle.put(f"/dev/nvidia{driver.gpus[1].minor}")
    bundle.config["mounts"] = [m for m in bundle.config["mounts"] if m["destination"] != "/dev"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    script = (
        f"nvidia-smi -L; cmp {LIBDIR}/libcuda.so.1 {LIBDIR}/{CUDA}; wc -c <{LIBDIR}/libcuda.so.1"
    )
    bundle.args("/bin/sh", "-c", script.replace("cmp", "/bin/busybox cmp"))

    result = each_runtime.start(bundle)

    assert uuids(bundle, (1,))[0] in result.stdout
    real = driver.directory / "root/usr/lib" / TRIPLET / CUDA
    assert int(result.stdout.split()[-1]) == real.stat().st_size
    assert library.read_bytes() == b"an old driver"
    assert program.read_bytes() == b"#!/bin/sh\necho old\n"
    assert os.readlink(old_link) == CUDA
    assert stat.S_ISREG(node.stat().st_mode)


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket-name", "link"])
@pytest.mark.parametrize("where", [f"{LIBDIR}/{CUDA}", "/usr/bin/nvidia-smi", "/dev/nvidiactl"])
def test_a_wrong_type_at_a_mount_target_is_refused(runc, bundles, where, kind):
    bundle = bundles(runc)
    bundle.config["mounts"] = [m for m in bundle.config["mounts"] if m["destination"] != "/dev"]
    path = bundle.root / where[1:]
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        bundle.put("/etc/passwd", b"root:x:0:0::/:/bin/sh\n")
        path.symlink_to("/etc/passwd")
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    if kind == "socket-name" and not where.startswith("/dev"):
        runc.start(bundle)  # a socket is a mount target for sockets; a file over it hides it
        assert stat.S_ISSOCK(path.lstat().st_mode)
        return
    error = runc.fail(bundle)

    name = {"fifo": "fifo", "link": "symbolic link", "socket-name": "socket"}.get(kind, kind)
    assert f"the image has a {name} at {where}" in error


def test_a_directory_where_a_parent_is_a_file(runc, bundles):
    bundle = bundles(runc)
    bundle.put("/usr/lib64", b"not a directory")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    assert "the image has a file where a directory goes" in runc.fail(bundle)


def test_a_musl_image_gets_a_path_file(each_runtime, bundles):
    bundle = bundles(each_runtime)
    bundle.put(f"/lib/ld-musl-{os.uname().machine}.so.1", b"\x7fELF")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    each_runtime.start(bundle)

    text = (bundle.root / f"etc/ld-musl-{os.uname().machine}.path").read_text()
    assert text.strip().split(":") == ["/lib", "/usr/local/lib", "/usr/lib", LIBDIR]


def test_a_glibc_image_gets_no_musl_file(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    runc.start(bundle)

    assert sorted(os.listdir(bundle.root / "etc")) == ["OpenCL", "ld.so.cache"]


def test_compat32_adds_the_32_bit_libraries(each_engine, bundles):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_DRIVER_CAPABILITIES=compute,compat32")
    bundle.args("/probe", "type", f"/usr/lib/{CUDA}", "open", "/usr/lib/libcuda.so.1")

    answers = each_engine.start(bundle).answers

    assert answers == {f"type /usr/lib/{CUDA}": "file", "open /usr/lib/libcuda.so.1": "OK"}
    cache = ldcache.parse((bundle.root / "etc/ld.so.cache").read_bytes())
    paths = {entry.path for entry in cache.entries if entry.name == "libcuda.so.1"}
    assert paths == {"/usr/lib/libcuda.so.1", f"{LIBDIR}/libcuda.so.1"}
