"""Things from the distribution's archive, by the mirror this machine's own apt uses.

Nothing is installed: packages are unpacked below the test cache and run from there.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("NVHOOK_TEST_CACHE", "/var/cache/nvhook-tests"))
NEWEST = {"debian": "sid", "ubuntu": "devel"}
COMPONENT = {"debian": "main", "ubuntu": "main universe"}


@contextmanager
def cache(name: str) -> Iterator[Path]:
    """Yield a place below the cache, locked: two test runs may want to fill it at once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield CACHE / name


def debian_root() -> Path:
    """Return a minimal root of this machine's own release; made once, 30 seconds."""
    with cache("debian-root") as directory:
        _run(REPOSITORY / "scripts/debian-root.sh", directory)
        return directory


def newest_crun() -> Path:
    """Return the distribution's newest crun.

    crun 1.8.1 (Debian 12) can't run in a pure cgroup v2 view without CAP_SYS_RESOURCE.
    """
    return newest_programs(["crun"], "crun") / "crun"


def newest_programs(programs: Sequence[str], *packages: str) -> Path:
    """Return a directory with programs of the distribution's newest release.

    They have their own loader and libraries. The rest of the packages and of what they depend on
    lies in ``tree`` there.
    """
    with cache(f"newest-{'+'.join(packages)}") as directory:
        if not directory.exists():
            work = directory.with_name(f"{directory.name}.partial")
            _remove(work)
            _fill(work, directory, programs, packages)
            work.rename(directory)
    return directory


def unpacked(package: str, newest: bool = False) -> Path:
    """Return the tree of one package, of this machine's own release or of the newest one."""
    with cache(f"{package}-{'newest' if newest else 'own'}") as directory:
        if not directory.exists():
            work = directory.with_name(f"{directory.name}.partial")
            _remove(work)
            work.mkdir()
            release = os_release()
            apt: list[str] = []
            if newest:
                suite, components = NEWEST[release["ID"]], COMPONENT[release["ID"]]
                apt = isolated_apt(work / "apt", suite, components)
                _run("apt-get", *apt, "update")
            subprocess.run(
                ["apt-get", *apt, "download", package], cwd=work, check=True, capture_output=True
            )
            for file in work.glob("*.deb"):
                _run("dpkg-deb", "--extract", file, work / "tree")
            (work / "tree").rename(directory)
            _remove(work)
        return directory


def _fill(work: Path, final: Path, programs: Sequence[str], packages: Sequence[str]) -> None:
    release = os_release()
    apt = isolated_apt(work / "apt", NEWEST[release["ID"]], COMPONENT[release["ID"]])
    _run("apt-get", *apt, "update")
    fetch = ["--yes", "--download-only", "--no-install-recommends", "install"]
    _run("apt-get", *apt, *fetch, *packages)
    tree = work / "tree"
    for file in sorted((work / "apt/cache/archives").glob("*.deb")):
        _run("dpkg-deb", "--extract", file, tree)
    tools = work / "tools"
    tools.mkdir()
    subprocess.run(["apt-get", "download", "patchelf"], cwd=tools, check=True, capture_output=True)
    for file in tools.glob("*.deb"):
        _run("dpkg-deb", "--extract", file, tools)
    loader = next(tree.glob("usr/lib/*/ld-linux-*.so.*"))
    libraries = final / loader.parent.relative_to(work)
    # Programs that run themselves again through /proc/self/exe can't be started as "ld.so PROGRAM".
    options = ["--set-interpreter", libraries / loader.name, "--force-rpath"]
    for name in programs:
        source = next(
            path for path in (tree / "usr/bin" / name, tree / "usr/sbin" / name) if path.exists()
        )
        shutil.copy(source, work / name)
        _run(tools / "usr/bin/patchelf", *options, "--set-rpath", libraries, work / name)
    _remove(work / "apt")


def isolated_apt(directory: Path, suite: str, components: str) -> list[str]:
    """Return apt options for one other suite of the machine's own mirror, with its own state."""
    release = os_release()
    for name in ("state/lists/partial", "cache/archives/partial"):
        (directory / name).mkdir(parents=True)
    keyring = Path(f"/usr/share/keyrings/{release['ID']}-archive-keyring.gpg")
    signed = f"[signed-by={keyring}] " if keyring.exists() else ""
    sources = directory / "sources.list"
    sources.write_text(f"deb {signed}{_mirror(release['VERSION_CODENAME'])} {suite} {components}\n")
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": directory / "state",
        "Dir::State::Status": "/dev/null",
        "Dir::Cache": directory / "cache",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _mirror(codename: str) -> str:
    targets = _run(
        "apt-get", "indextargets", "--format", "$(SITE)|$(CODENAME)", "Created-By: Packages"
    )
    for line in targets.splitlines():
        site, _, suite = line.partition("|")
        if suite == codename:
            return site
    raise LookupError(f"apt knows no mirror of {codename}: run apt-get update")


def os_release() -> dict[str, str]:
    """Return /etc/os-release."""
    lines = Path("/etc/os-release").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip('"') for key, _, value in pairs}


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _remove(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)  # noqa: TID251 - the tests' own cache
