"""NVIDIA's real user-space driver from Debian non-free, as driver roots in the test cache.

Nothing is installed: the packages are unpacked, and their own postinst scripts make the links.
"""

import hashlib
import platform
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nvhook.core.layout import TRIPLETS
from nvhook.sim import driver as simulated_driver
from tests.runtime import packages
from tests.runtime.simulated import MINORS, Driver

# driver branch -> the Debian release that has it
SUITES = {"535": "bookworm", "550": "trixie"}
# Everything that has a library or a program of the driver, and what tells Vulkan, EGL and OpenCL
# of it. Not here: firmware (find_firmware has tests of its own), kernel modules, nvidia-settings
# (its libraries draw its windows), empty packages.
PACKAGES = (
    "libcudadebugger1",
    "libnvidia-api1",
    "libnvidia-cfg1",
    "libnvidia-ngx1",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-rtcore",
    "libnvoptix1",
    "nvidia-cuda-mps",
    "nvidia-driver-bin",
    "nvidia-egl-common",
    "nvidia-opencl-common",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-vulkan-common",
    "nvidia-xconfig",
    "xserver-xorg-video-nvidia",
)
# For the machine and, on x86-64, for 32-bit programs.
BOTH_PACKAGES = (
    "libcuda1",
    "libegl-nvidia0",
    "libgles-nvidia1",
    "libgles-nvidia2",
    "libglx-nvidia0",
    "libnvcuvid1",
    "libnvidia-allocator1",
    "libnvidia-egl-gbm1",
    "libnvidia-eglcore",
    "libnvidia-encode1",
    "libnvidia-fbc1",
    "libnvidia-glcore",
    "libnvidia-glvkspirv",
    "libnvidia-ml1",
    "libnvidia-nvvm4",
    "libnvidia-opticalflow1",
    "libnvidia-ptxjitcompiler1",
    "nvidia-egl-icd",
    "nvidia-libopencl1",
    "nvidia-opencl-icd",
    "nvidia-vdpau-driver",
    "nvidia-vulkan-icd",
)
MORE_PACKAGES = {"550": ("libnvidia-gpucomp",)}
# Their postinst scripts make the links through /etc/alternatives, in this order.
ALTERNATIVES = ("nvidia-alternative", "glx-alternative-nvidia")

# dpkg -x would put a directory in the place of the link /lib.
EXTRACT = 'dpkg-deb --fsys-tarfile "$1" | tar -x --keep-directory-symlink -C "$2"'
# Runs in the driver's files on top of a Debian root. dpkg-trigger only tells dpkg what to do next.
CONFIGURE = """
set -e
export DEBIAN_FRONTEND=noninteractive
ln -s /bin/true /usr/local/bin/dpkg-trigger
for script in /postinst/*; do
    DPKG_MAINTSCRIPT_PACKAGE=${script#*-} DPKG_MAINTSCRIPT_NAME=postinst \\
        sh "$script" triggered register-glx-alternative-nvidia--pong
done
rm -r /postinst /usr/local/bin/dpkg-trigger
# As the C library for 32-bit programs has it.
echo /usr/lib/i386-linux-gnu > /etc/ld.so.conf.d/i386-linux-gnu.conf
ldconfig
"""


class RealDriver:
    """One version's files: three driver roots with the same libraries.

    ``configured``: as installed, with /etc/alternatives and ld.so.cache; ``uncached``: the same
    without ld.so.cache; ``bare``: the packages' files alone, no link made by a script.
    """

    ROOTS = ("configured", "uncached", "bare")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.version = (directory / "version").read_text()

    def root(self, name: str) -> Path:
        """Return one of the three driver roots."""
        return self.directory / name

    def shipped(self, pattern: str) -> dict[str, Path]:
        """Return the packages' regular files whose name matches, by path below the root."""
        bare = self.root("bare")
        files = [path for path in bare.rglob(pattern) if path.is_file() and not path.is_symlink()]
        return {f"/{path.relative_to(bare)}": path for path in files}


class KernelSide(Driver):
    """Four GPUs as a version's kernel modules show them; the driver root is of real files."""

    def __init__(self, directory: Path, version: str, driver_root: Path) -> None:
        self.directory = directory
        self.driver_root = driver_root
        config = simulated_driver.create(
            str(directory), minors=MINORS, driver_version=version, report=self._refuse
        )
        self.config = Path(config)
        self.launcher = Path(sysconfig.get_path("scripts")) / "nvhook"

    def configuration(self, path: Path, log: Path, **changes: str) -> Path:
        """Write a configuration that finds the libraries in the real files."""
        changes.setdefault("driver_root", f'"{self.driver_root}"')
        return super().configuration(path, log, **changes)


def real_driver(branch: str) -> RealDriver:
    """Return the driver of a branch (a key of SUITES), downloading about 350 MB the first time."""
    # Another list of packages, or another way to lay them out, is another driver.
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    with packages.cache(f"real-driver-{branch}-{digest}") as directory:
        if not directory.exists():
            work = directory.with_name(f"{directory.name}.partial")
            _remove(work)
            work.mkdir()
            _build(branch, work)
            work.rename(directory)
        return RealDriver(directory)


def _build(branch: str, work: Path) -> None:
    scratch = work / "scratch"
    bare, configured, uncached = (work / name for name in ("bare", "configured", "uncached"))
    for name in ("bin", "lib", "lib64", "sbin"):  # a merged /usr, as Debian has it
        (bare / "usr" / name).mkdir(parents=True)
        (bare / name).symlink_to(f"usr/{name}")
    postinst = scratch / "postinst"
    postinst.mkdir(parents=True)
    for name, package in _download(branch, scratch).items():
        run("sh", "-c", EXTRACT, "sh", package, bare)
        if name in ALTERNATIVES:
            run("dpkg-deb", "--control", package, scratch / name)
            script = postinst / f"{ALTERNATIVES.index(name)}-{name}"
            (scratch / name / "postinst").rename(script)
    run("cp", "-al", bare, configured)  # the three share their files
    shutil.copytree(postinst, configured / "postinst")
    with overlay(packages.debian_root(), configured, scratch) as merged:
        run("chroot", merged, "/bin/sh", "-c", CONFIGURE)
    run("cp", "-al", configured, uncached)
    (uncached / "etc/ld.so.cache").unlink()
    libraries = bare / "usr/lib" / TRIPLETS[platform.machine()] / "nvidia/current"
    (library,) = libraries.glob("libcuda.so.*.*")
    (work / "version").write_text(library.name.removeprefix("libcuda.so."))
    _remove(scratch)


def _download(branch: str, scratch: Path) -> dict[str, Path]:
    """Return the packages by name; those for 32-bit programs are called ``libcuda1:i386``."""
    apt = packages.isolated_apt(scratch / "apt", SUITES[branch], "main contrib non-free")
    both = (*BOTH_PACKAGES, *MORE_PACKAGES.get(branch, ()))
    names = [*PACKAGES, *both, *ALTERNATIVES]
    if platform.machine() == "x86_64":
        apt += ["-o", "APT::Architectures::=amd64", "-o", "APT::Architectures::=i386"]
        names += [f"{name}:i386" for name in both]
    run("apt-get", *apt, "update")
    target = scratch / "packages"
    target.mkdir()
    run("apt-get", *apt, "download", *names, directory=target)
    found = {}
    for path in sorted(target.glob("*.deb")):
        suffix = ":i386" if path.stem.endswith("_i386") else ""
        found[path.name.partition("_")[0] + suffix] = path
    assert found.keys() == set(names)
    return found


@contextmanager
def overlay(lower: Path, upper: Path, scratch: Path) -> Iterator[Path]:
    """Mount upper over lower; ``scratch`` is on the file system of upper."""
    merged, work = scratch / "merged", scratch / "work"
    merged.mkdir()
    work.mkdir()
    layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "overlay", "-o", layers, merged)
    try:
        yield merged
    finally:
        run("umount", merged)


def run(*command: str | Path, directory: Path | None = None) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr).strip()[-500:]}")


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)  # noqa: TID251 - the tests' own cache
