"""Libraries below a driver root: each ldconfig sample becomes a root with real (tiny) ELF files."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nvhook.core.catalog import LIBRARIES
from nvhook.errors import HostError, UnsupportedError
from nvhook.host.libraries import catalogue_name, find_libraries

SAMPLES = Path(__file__).parents[1] / "data" / "ldconfig"
X86 = "/usr/lib/x86_64-linux-gnu"
I386 = "/usr/lib/i386-linux-gnu"
ARM = "/usr/lib/aarch64-linux-gnu"

FULL_64 = [
    *("libEGL_nvidia", "libGLESv1_CM_nvidia", "libGLESv2_nvidia", "libGLX_nvidia", "libcuda"),
    *("libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg"),
    *("libnvidia-eglcore", "libnvidia-encode", "libnvidia-fbc", "libnvidia-glcore"),
    *("libnvidia-glsi", "libnvidia-glvkspirv", "libnvidia-ml", "libnvidia-ngx"),
    *("libnvidia-nvvm", "libnvidia-opencl", "libnvidia-opticalflow"),
    *("libnvidia-pkcs11-openssl3", "libnvidia-ptxjitcompiler", "libnvidia-rtcore"),
    *("libnvidia-tls", "libnvoptix", "libvdpau_nvidia"),
]
NOT_32 = {
    *("libcudadebugger", "libnvidia-cfg", "libnvidia-ngx", "libnvidia-pkcs11-openssl3"),
    *("libnvidia-rtcore", "libnvoptix"),
}

# sample -> (machine, driver version, {resolved path: bits})
FOUND: dict[str, tuple[str, str, dict[str, int]]] = {
    "RECONSTRUCTED-ubuntu2204-535.129.03-full_i386.txt": (
        "x86_64",
        "535.129.03",
        {
            **{f"{X86}/{name}.so.535.129.03": 64 for name in (*FULL_64, "libnvidia-gtk3")},
            **{f"{I386}/{name}.so.535.129.03": 32 for name in FULL_64 if name not in NOT_32},
        },
    ),
    "aarch64-lowercase_tag_and_x86.txt": (
        "aarch64",
        "550.54.15",
        {f"{ARM}/libcuda.so.550.54.15": 64, f"{ARM}/libnvidia-ml.so.550.54.15": 64},
    ),
    "container_after_cdi-no_libcuda_so.txt": (
        "x86_64",
        "550.54.15",
        {f"{X86}/libcuda.so.550.54.15": 64},
    ),
    # the compat directory's libcuda is of another version: the driver's own one is found
    "cuda_compat-container-h100-550.163.01.txt": (
        "x86_64",
        "550.163.01",
        {"/usr/lib64/libcuda.so.550.163.01": 64},
    ),
    "debian-alternatives-455.10.txt": (
        "x86_64",
        "455.10",
        {
            **{
                f"{X86}/nvidia/current/{name}.so.455.10": 64
                for name in (
                    *("libEGL_nvidia", "libGLX_nvidia", "libcuda", "libnvidia-ml"),
                    *("libnvidia-opencl", "libnvidia-opticalflow", "libnvidia-ptxjitcompiler"),
                    *("libnvidia-rtcore", "libnvidia-tls", "libnvoptix"),
                )
            },
            f"{X86}/vdpau/libvdpau_nvidia.so.455.10": 64,
        },
    ),
    "empty_cache.txt": ("x86_64", "550.54.15", {}),
    "fedora_rhel-525.85.05-lib64_and_lib.txt": (
        "x86_64",
        "525.85.05",
        {"/usr/lib64/libcuda.so.525.85.05": 64, "/usr/lib/libcuda.so.525.85.05": 32},
    ),
    "gb10_dgx_spark-580.142.txt": ("aarch64", "580.142", {f"{ARM}/libcuda.so.580.142": 64}),
    "gcp_cos-var_lib_nvidia_not_cached.txt": (
        "x86_64",
        "535.183.06",
        {
            "/var/lib/nvidia/lib64/libcuda.so.535.183.06": 64,
            "/var/lib/nvidia/lib64/libnvidia-ml.so.535.183.06": 64,
        },
    ),
    # L4T names its file libcuda.so.1.1: no driver version, so no library of it
    "jetson-l4t32-xavier.txt": ("aarch64", "540.4.0", {}),
    "jetson-thor-l4t_gpu_libs.txt": (
        "aarch64",
        "580.00",
        {"/opt/nvidia/l4t-gpu-libs/nvgpu/libcuda.so.580.00": 64},
    ),
    # here and below: everything that carries the driver's version beside a library of the catalogue
    "opencl_only.txt": (
        "x86_64",
        "550.54.15",
        {
            f"{X86}/libnvidia-opencl.so.550.54.15": 64,
            f"{X86}/libOpenCL.so.550.54.15": 64,
        },
    ),
    # what an x86-64 machine makes of a ppc64le root; such a machine itself is refused, see below
    "ppc64le-525.147.05.txt": ("x86_64", "525.147.05", {}),
    "rhel7-nvidia_subdir.txt": (
        "x86_64",
        "470.57.02",
        {"/usr/lib64/nvidia/libnvidia-ml.so.470.57.02": 64},
    ),
    "ubuntu-550.78.01-header_and_weird_line.txt": (
        "x86_64",
        "550.78.01",
        {
            f"{X86}/libcuda.so.550.78.01": 64,
            f"{I386}/libcuda.so.550.78.01": 32,
            f"{X86}/libnvidia-glcore.so.550.78.01": 64,
            f"{X86}/libGL.so.550.78.01": 64,
            f"{X86}/libnotify.so.550.78.01": 64,
            f"{X86}/libnvidia-ml.so.550.78.01": 64,
        },
    ),
    "ubuntu-hami_t4-580-lib_prefix.txt": (
        "x86_64",
        "580.65.06",
        {f"{X86}/libcuda.so.580.65.06": 64, f"{X86}/libnvidia-ml.so.580.65.06": 64},
    ),
}
MERGED_USR = ("debian", "fedora", "gb10", "RECONSTRUCTED", "ubuntu", "opencl")


def real_file(sample: str, name: str, path: str, version: str) -> str:
    """Return where the file behind a cache entry is on such a system."""
    directory, _, file_name = path.rpartition("/")
    stem = file_name.partition(".so")[0] + ".so"
    if sample.startswith("jetson-l4t32"):
        return f"{ARM}/tegra/{stem}.1.1"
    if "/compat/" in path:
        return f"{directory}/{stem}.580.95.05"
    if sample.startswith("debian"):
        directory = f"{X86}/vdpau" if "vdpau" in name else f"{X86}/nvidia/current"
    return f"{directory}/{stem}.{version}"


def build(host, sample: str, version: str) -> None:
    """Lay out the driver root of a sample: the cache as printed, and files behind its entries."""
    if sample.startswith(MERGED_USR):
        for name in ("lib", "lib64"):
            (host.root / "usr" / name).mkdir(parents=True)
            host.link(f"/{name}", f"usr/{name}")
    for name, tag, path in host.ldconfig((SAMPLES / sample).read_text()):
        if not path.startswith("/"):
            continue  # the vdso is no file
        soname = name if name.rpartition(".")[2].isdigit() and version not in name else ""
        target = real_file(sample, name, path, version)
        if not os.path.lexists(host.root / target.lstrip("/")):
            host.library(target, soname or name, tag)
        if os.path.lexists(host.root / path.lstrip("/")):
            continue
        if sample.startswith("debian"):
            host.link(f"/etc/alternatives/glx--{name}", target)
            host.link(path, f"/etc/alternatives/glx--{name}")
        else:
            host.link(path, os.path.relpath(target, os.path.dirname(path)))
    if sample.startswith("gcp_cos"):
        for name in ("libcuda", "libnvidia-ml"):
            host.library(f"/var/lib/nvidia/lib64/{name}.so.{version}", f"{name}.so.1")


@pytest.mark.parametrize("sample", sorted(path.name for path in SAMPLES.iterdir()))
def test_ldconfig_sample(host, sample: str) -> None:
    machine, version, expected = FOUND[sample]
    build(host, sample, version)
    libraries = find_libraries(str(host.root), version, machine)
    assert {library.path: library.bits for library in libraries} == expected
    for library in libraries:
        assert library.host_path == f"{host.root}{library.path}"
        assert Path(library.host_path).resolve() == Path(library.host_path)
        assert library.soname.startswith(library.name)
        assert library.flags == {64: 0x0303, 32: 0x0003}[library.bits] or machine == "aarch64"


def test_two_architectures_in_one_cache_seen_from_the_other(host) -> None:
    build(host, "aarch64-lowercase_tag_and_x86.txt", "550.54.15")
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert (library.path, library.flags) == (f"{X86}/libcuda.so.550.54.15", 0x0303)


def test_machine_that_is_not_supported(host) -> None:
    build(host, "ppc64le-525.147.05.txt", "525.147.05")
    with pytest.raises(UnsupportedError, match="no support for ppc64le"):
        find_libraries(str(host.root), "525.147.05", "ppc64le")


def test_catalogue_order_and_soname(host) -> None:
    sample = "RECONSTRUCTED-ubuntu2204-535.129.03-full_i386.txt"
    build(host, sample, "535.129.03")
    libraries = find_libraries(str(host.root), "535.129.03", "x86_64")
    order = [name for names in LIBRARIES.values() for name in names]
    listed = [library for library in libraries if library.name in order]
    positions = [(order.index(library.name), -library.bits) for library in listed]
    assert positions == sorted(positions)
    assert [library.name for library in libraries[len(listed) :]] == ["libnvidia-gtk3.so"]
    sonames = {library.name: library.soname for library in libraries}
    assert sonames["libcuda.so"] == "libcuda.so.1"
    assert sonames["libnvidia-tls.so"] == "libnvidia-tls.so.535.129.03"


@pytest.mark.parametrize(
    ("file_name", "name"),
    [
        ("libcuda.so", "libcuda.so"),
        ("libcuda.so.1", "libcuda.so"),
        ("libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so"),
        ("libcuda.sox", None),
        ("libcuda.so.", "libcuda.so"),
        ("xlibcuda.so.1", None),
        ("libcudart.so.13", None),
        ("", None),
    ],
)
def test_catalogue_name(file_name: str, name: str | None) -> None:
    assert catalogue_name(file_name) == name


def test_links_never_lead_out_of_the_driver_root(host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    inside = host.library(f"{X86}/libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1")
    shutil.copy(inside, outside / "libcuda.so.550.54.15")
    host.link(f"{X86}/libcuda.so.1", str(outside / "libcuda.so.550.54.15"))
    up = "../" * 40 + str(outside).lstrip("/")
    host.link(f"{X86}/libnvidia-cfg.so.1", f"{up}/libcuda.so.550.54.15")
    host.link("/usr/lib64", f"../{'../' * 40}{str(outside).lstrip('/')}")
    names = [library.name for library in find_libraries(str(host.root), "550.54.15", "x86_64")]
    assert names == ["libnvidia-ml.so"]


def test_link_loops_and_dangling_links_are_ignored(host) -> None:
    host.link(f"{X86}/libcuda.so.1", "libcuda.so")
    host.link(f"{X86}/libcuda.so", "libcuda.so.1")
    host.link(f"{X86}/libnvidia-ml.so.1", "libnvidia-ml.so.550.54.15")
    host.link("/usr/lib64", "/usr/lib64")
    assert find_libraries(str(host.root), "550.54.15", "x86_64") == ()


def test_files_that_are_no_libraries_are_ignored(host) -> None:
    host.put(f"{X86}/libcuda.so.550.54.15", b"")
    host.put(f"{X86}/libnvidia-ml.so.550.54.15", b"\x7fELF\x02\x01\x01")
    (host.root / X86.lstrip("/") / "libnvidia-cfg.so.550.54.15").mkdir()
    os.mkfifo(host.root / X86.lstrip("/") / "libnvoptix.so.550.54.15")
    assert find_libraries(str(host.root), "550.54.15", "x86_64") == ()


def test_library_of_another_machine_in_a_64_bit_directory_is_ignored(host) -> None:
    host.library("/usr/lib/libcuda.so.550.54.15", "libcuda.so.1", "libc6")
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert (library.bits, library.flags) == (32, 0x0003)
    assert find_libraries(str(host.root), "550.54.15", "aarch64") == ()


def test_cache_entry_that_lies_about_its_machine_is_ignored(host) -> None:
    host.library("/opt/libcuda.so.550.54.15", "libcuda.so.1", "libc6,aarch64")
    host.cache([("libcuda.so.1", "libc6,x86-64", "/opt/libcuda.so.550.54.15")])
    assert find_libraries(str(host.root), "550.54.15", "x86_64") == ()


def test_two_drivers_on_disk_the_loaded_one_is_taken(host) -> None:
    host.library(f"{X86}/libcuda.so.535.183.06", "libcuda.so.1")
    host.library("/opt/new/libcuda.so.550.54.15", "libcuda.so.1")
    host.cache(
        [
            ("libcuda.so.1", "libc6,x86-64", f"{X86}/libcuda.so.535.183.06"),
            ("libcuda.so.1", "libc6,x86-64", "/opt/new/libcuda.so.550.54.15"),
        ]
    )
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert library.path == "/opt/new/libcuda.so.550.54.15"


def test_first_cache_entry_wins_and_directories_come_last(host) -> None:
    for directory in ("/opt/b", "/opt/a", X86):
        host.library(f"{directory}/libcuda.so.550.54.15", "libcuda.so.1")
    host.cache(
        [
            ("libcuda.so.1", "libc6,x86-64", f"/opt/{name}/libcuda.so.550.54.15")
            for name in ("b", "a")
        ]
    )
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert library.path == "/opt/b/libcuda.so.550.54.15"


def test_version_that_only_ends_alike_is_another_one(host) -> None:
    host.library(f"{X86}/libcuda.so.1550.54.15", "libcuda.so.1")
    with pytest.raises(HostError, match="mismatch"):
        find_libraries(str(host.root), "550.54.15", "x86_64")


def test_only_another_version_is_a_mismatch(host) -> None:
    host.library(f"{X86}/libcuda.so.535.183.06", "libcuda.so.1")
    with pytest.raises(HostError) as caught:
        find_libraries(str(host.root), "550.54.15", "x86_64")
    assert caught.value.message == (
        "driver/library version mismatch: kernel module 550.54.15, libcuda.so 535.183.06"
    )
    assert "reboot" in caught.value.hint


def test_unlisted_library_of_the_drivers_version(host) -> None:
    host.library(f"{X86}/libcuda.so.550.54.15", "libcuda.so.1")
    host.library(f"{X86}/libnvidia-new.so.550.54.15", "libnvidia-new.so.2")
    host.library(f"{X86}/libnvidia-old.so.535.183.06", "libnvidia-old.so.2")
    host.library(f"{X86}/libother.so.550.54", "libother.so.550")
    host.library(f"{X86}/libarm.so.550.54.15", "libarm.so.1", "libc6,aarch64")
    host.put(f"{X86}/libbroken.so.550.54.15", b"no ELF")
    host.library("/opt/lib/libelsewhere.so.550.54.15", "libelsewhere.so.1")
    found = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert [library.name for library in found] == ["libcuda.so", "libnvidia-new.so"]
    assert found[1].soname == "libnvidia-new.so.2"


def test_library_with_a_version_of_its_own(host) -> None:
    host.library(f"{X86}/libnvidia-nscq.so.2.0", "libnvidia-nscq.so.2")
    (library,) = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert library.path == f"{X86}/libnvidia-nscq.so.2.0"


@pytest.mark.parametrize("cache", [b"", b"junk", b"glibc-ld.so.cache1.1" + b"\xff" * 28])
def test_broken_cache_leaves_the_directories(host, cache: bytes) -> None:
    host.library(f"{X86}/libcuda.so.550.54.15", "libcuda.so.1")
    host.put("/etc/ld.so.cache", cache)
    names = [library.name for library in find_libraries(str(host.root), "550.54.15", "x86_64")]
    assert names == ["libcuda.so"]


@pytest.mark.root
def test_cache_that_the_real_ldconfig_wrote(host, require) -> None:
    require(os.geteuid() == 0 and os.path.exists("/sbin/ldconfig"), "ldconfig -r needs root")
    host.library("/opt/driver/libcuda.so.550.54.15", "libcuda.so.1")
    host.library("/opt/driver32/libcuda.so.550.54.15", "libcuda.so.1", "libc6")
    host.put("/etc/ld.so.conf", b"/opt/driver\n/opt/driver32\n")
    subprocess.run(["/sbin/ldconfig", "-r", str(host.root)], check=True)
    libraries = find_libraries(str(host.root), "550.54.15", "x86_64")
    assert [(library.path, library.bits) for library in libraries] == [
        ("/opt/driver/libcuda.so.550.54.15", 64),
        ("/opt/driver32/libcuda.so.550.54.15", 32),
    ]
