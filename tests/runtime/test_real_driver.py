"""NVIDIA's real 535 and 550 libraries and programs, injected into a Debian container by runc.

There is no kernel driver, so everything must work up to the point where the driver is asked.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nvhook.core import catalog
from nvhook.core.inventory import Library
from nvhook.host.files import find_binaries, find_data_files, find_xorg_modules
from nvhook.host.libraries import catalogue_name, find_libraries
from tests.runtime import packages
from tests.runtime.bundle import Bundle
from tests.runtime.cgroup_view import View
from tests.runtime.engine import Engine, Result
from tests.runtime.real_driver import SUITES, KernelSide, RealDriver, real_driver, run

HERE = Path(__file__).parent
MACHINE = os.uname().machine
# Catalogue name of a library in the packages that no container gets -> why.
EXCLUDED = {
    "libOpenCL.so": "the loader of OpenCL belongs to the image; the driver is what it loads",
}
# Without the links that the packages' scripts make, Xorg does not find its modules either.
WITHOUT_LINKS = {"libglxserver_nvidia.so", "nvidia_drv.so"}
# A driver capability that brings it, of what compute and utility do not.
CAPABILITIES = {
    "libnvcuvid.so": "video",
    "libnvidia-encode.so": "video",
    "libnvidia-opticalflow.so": "video",
    "libvdpau_nvidia.so": "video",
    "libnvidia-ngx.so": "ngx",
}
DATA_FILES = {
    "/etc/OpenCL/vendors/nvidia.icd",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/usr/share/nvidia/nvoptix.bin",
    "/usr/share/X11/xorg.conf.d/nvidia-drm-outputclass.conf",
}
PROGRAMS = {
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-xconfig",
}
# It needs libcrypto, which the image has or has not: that is not the driver's.
NEEDS_MORE = ("libnvidia-pkcs11-openssl3.so",)
NO_DEVICE = "100 CUDA_ERROR_NO_DEVICE"
Start = Callable[..., Result]


@pytest.fixture(scope="session", params=SUITES)
def real(
    request: pytest.FixtureRequest, real_host: None, require: Callable[..., None]
) -> RealDriver:
    """The real files of each branch."""
    require(packages.os_release()["ID"] == "debian", "needs the archive of Debian")
    return real_driver(request.param)


@pytest.fixture(scope="session")
def load_check(tmp_path_factory: pytest.TempPathFactory, real_host: None) -> Path:
    """The compiled program that loads libraries by name."""
    program = tmp_path_factory.mktemp("real") / "load_check"
    run("gcc", "-O", "-Wall", "-Werror", "-o", program, HERE / "load_check.c", "-ldl")
    return program


@pytest.fixture
def bundle_of(
    tmp_path: Path, hybrid: View, compiled: Path, debian: Path, load_check: Path
) -> Iterator[Callable[..., Bundle]]:
    """Make a Debian bundle whose host has real libraries and a kernel side of some version."""
    made: list[Bundle] = []

    def make(driver_root: Path, version: str) -> Bundle:
        kernel = KernelSide(tmp_path / f"sim{len(made)}", version, driver_root)
        directory = tmp_path / f"real{len(made)}"
        directory.mkdir()
        made.append(Bundle(directory, hybrid, kernel, compiled / "probe"))
        made[-1].use_overlay(debian)
        shutil.copy(load_check, made[-1].seen_root / "load_check")
        made[-1].ask("NVIDIA_VISIBLE_DEVICES=1")
        return made[-1]

    yield make
    for bundle in made:
        bundle.remove()


@pytest.fixture
def injected(
    real: RealDriver, runc: Engine, bundle_of: Callable[..., Bundle]
) -> Callable[[str], Result]:
    """Run a shell script in a container that was given GPU 1 with this driver as installed."""

    def start(script: str, root: str = "configured", *variables: str) -> Result:
        bundle = bundle_of(real.root(root), real.version)
        bundle.ask(*variables)
        bundle.args("/bin/sh", "-c", script)
        return runc.start(bundle)

    return start


def found_in(real: RealDriver, root: str) -> tuple[Library, ...]:
    return find_libraries(str(real.root(root)), real.version, MACHINE)


def name_of(path: str) -> str:
    """Return libcuda.so of .../libcuda.so.550.163.01, and a program's name."""
    stem, dot_so, _ = path.rpartition("/")[2].partition(".so")
    return stem + dot_so


def for_default_capabilities(name: str) -> bool:
    return any(name in catalog.LIBRARIES.get(c, ()) for c in catalog.DEFAULT_CAPABILITIES)


@pytest.mark.parametrize("root", RealDriver.ROOTS)
def test_every_library_of_the_packages_is_found_or_excluded_for_a_reason(
    real: RealDriver, root: str
) -> None:
    shipped = real.shipped("*.so*")
    directory = str(real.root(root))
    found = {library.path for library in found_in(real, root)}
    found |= {file.path for file in find_xorg_modules(directory, real.version, MACHINE)}
    left = {path: name_of(path) for path in shipped.keys() - found}
    without_links = WITHOUT_LINKS if root == "bare" else set()
    assert set(left.values()) == EXCLUDED.keys() | without_links, left
    assert found <= shipped.keys()
    assert len(found) >= (50 if MACHINE == "x86_64" else 28)


def test_every_library_found_is_brought_by_some_capability_and_listed(real: RealDriver) -> None:
    """None is there only because it carries the driver's version."""
    for library in found_in(real, "configured"):
        assert catalogue_name(library.path.rpartition("/")[2]) == library.name
        assert any(library.name in names for names in catalog.LIBRARIES.values()), library.name


@pytest.mark.parametrize("root", RealDriver.ROOTS)
def test_discovery_finds_every_program_in_every_layout(real: RealDriver, root: str) -> None:
    found = {file.name: Path(file.host_path) for file in find_binaries(str(real.root(root)))}
    assert found.keys() == PROGRAMS
    for name, path in found.items():
        assert any(path.samefile(shipped) for shipped in real.shipped(name).values())


@pytest.mark.parametrize("root", ["configured", "uncached"])
def test_discovery_finds_what_vulkan_egl_opencl_optix_and_xorg_read(
    real: RealDriver, root: str
) -> None:
    found = find_data_files(str(real.root(root)), MACHINE)
    assert {file.name for file in found} == DATA_FILES


def test_layouts_give_the_same_paths(real: RealDriver) -> None:
    layouts = [
        [
            (library.name, library.soname, library.path, library.flags)
            for library in found_in(real, root)
        ]
        for root in RealDriver.ROOTS
    ]
    assert layouts[0] == layouts[1] == layouts[2]


@pytest.mark.parametrize("capabilities", ["compute,utility", "all"])
@pytest.mark.parametrize("root", RealDriver.ROOTS)
def test_what_the_packages_ship_is_injected_or_left_out_for_a_reason(
    real: RealDriver, injected: Start, root: str, capabilities: str
) -> None:
    # dev:inode tells the file itself apart from a copy of the image.
    script = "for i in $(find /usr /etc -name '*.so*' -o -name 'nvidia*'); do "
    result = injected(
        script + "stat -L -c '%d:%i = %n' $i 2>&1; done",
        root,
        f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",
    )
    asked = catalog.CAPABILITIES if capabilities == "all" else catalog.DEFAULT_CAPABILITIES
    without_links = WITHOUT_LINKS if root == "bare" else set()
    programs = [
        path
        for name in PROGRAMS
        for path in real.shipped(name).values()
        if path.stat().st_mode & 0o111 and "/etc/" not in str(path)
    ]
    for path in [*real.shipped("*.so*").values(), *programs]:
        status = path.stat()
        name, is_narrow = name_of(str(path)), "/i386-linux-gnu/" in str(path)
        is_there = f"{status.st_dev}:{status.st_ino}" in result.answers
        if name in EXCLUDED.keys() | without_links:
            assert not is_there, path
            continue
        brought = {c for c in catalog.CAPABILITIES if brings(c, name)}
        assert brought, f"{name} is brought by no capability"
        expected = not brought.isdisjoint(asked) and ("compat32" in asked or not is_narrow)
        assert is_there is expected, (path, brought)


@pytest.mark.parametrize("name", CAPABILITIES)
def test_what_compute_and_utility_do_not_bring(name: str) -> None:
    """Written down once more, by hand: the test above takes the catalogue's word for it."""
    assert [c for c in catalog.CAPABILITIES if brings(c, name)] == [CAPABILITIES[name]]


def brings(capability: str, name: str) -> bool:
    is_xorgs = name in WITHOUT_LINKS and capability in catalog.GRAPHICS
    known = catalog.LIBRARIES.get(capability, ()), catalog.BINARIES.get(capability, ())
    return is_xorgs or any(name in names for names in known)


def test_nvidia_smi_starts_and_misses_only_the_driver(injected: Start) -> None:
    result = injected('nvidia-smi; echo "exit = $?"; LD_DEBUG=libs nvidia-smi >&2; :')
    assert result.answers["exit"] == "9", result.stdout + result.stderr
    message = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert message in result.stdout
    assert "error while loading shared libraries" not in result.stderr
    # The loader asked the cache, and the first file it was told is the library.
    search = re.search(
        r"find library=libnvidia-ml\.so\.1 .*\n"
        r"(?:.*search path=.*\n(?:.*trying file=.*\n)*)?"
        r".*search cache=/etc/ld\.so\.cache\n"
        r".*trying file=(\S+)\n",
        result.stderr,
    )
    assert search is not None, result.stderr
    assert re.fullmatch(r"(/usr)?/lib/[^/]+-linux-gnu/libnvidia-ml\.so\.1", search[1])
    assert f"calling init: {search[1]}" in result.stderr


def test_programs_load_the_libraries(real: RealDriver, injected: Start) -> None:
    libraries = [
        lib
        for lib in found_in(real, "configured")
        if lib.bits == 64 and for_default_capabilities(lib.name)
    ]
    names = [lib.soname for lib in libraries if lib.name not in NEEDS_MORE]
    assert {"libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libnvidia-opencl.so.1"} <= set(names)
    result = injected(f"/load_check {' '.join(names)} && ldconfig -p | sed 's/ => / = /'")
    for name in names:
        path = result.answers[name]
        assert re.fullmatch(rf"(/usr)?/lib/[^/]+-linux-gnu/{re.escape(name)}", path), path
    assert result.answers["cuInit"] == NO_DEVICE
    listed = {question.split()[0] for question in result.answers if "(libc6," in question}
    assert {lib.soname for lib in libraries} | {"libcuda.so"} <= listed


def test_container_reaches_what_it_asked_for_and_no_more(injected: Start) -> None:
    # GPU 1 has minor 3, GPU 0 minor 2. No driver answers: ENXIO, where the device rule says EPERM.
    result = injected("/probe open /dev/nvidia3 open /dev/nvidia2 open /nodes/nvidia2")
    assert result.answers == {
        "open /dev/nvidia3": "ENXIO",
        "open /dev/nvidia2": "ENOENT",
        "open /nodes/nvidia2": "EPERM",
    }


def test_other_version_of_the_kernel_modules_is_refused(
    real: RealDriver, runc: Engine, bundle_of: Callable[..., Bundle]
) -> None:
    kernel = "550.163.01" if real.version.startswith("535") else "535.261.03"
    bundle = bundle_of(real.root("configured"), kernel)
    bundle.args("/bin/true")
    error = runc.fail(bundle)
    assert f"kernel module {kernel}" in error
    assert real.version in error
    assert "hint: " in error
