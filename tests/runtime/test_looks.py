"""A real first start, system call by system call: whatever it looks at stands in its recording.

A look that is not noted is one that the launcher can't take again: what it says may change, and the
container of the same kind would be given what is no longer right.
"""

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nvhook
from tests.runtime.test_recordings import recordings

SITE = Path(nvhook.__file__).parents[1]
CALL = re.compile(r"^\d+ +(?P<name>\w+)\((?P<arguments>.*)$")
# A path, and before it perhaps the directory it is relative to: 7</a/directory>, "a/name"
PATH = re.compile(r'(?:(?:AT_FDCWD|\d+)<(?P<directory>[^>]*)>, )?"(?P<path>(?:[^"\\]|\\.)*)"')

# Looks that are not noted, and why they need not be.
ALLOWED = {
    str(Path(json.__file__).parents[1]): "Python's own library",
    str(SITE): "nvhook's package, whose version is in a recording's name",
    "/proc/PID": "the container's process, which the launcher opens as well",
    "/proc/self": "our own: namespaces, mounts, cgroups, which the launcher compares as well",
    "/run/nvhook": "what nvhook remembers, under keys that are noted",
    "/": "whether the root is the host's, which the launcher compares as well",
    "/etc/ld.so.cache": "the loader, for a module of Python's",
    "/lib/": "the same",
    "/usr/share/zoneinfo": "the time zone, for the log",
    "/etc/localtime": "the same",
    "/sys/fs/cgroup": "the container's cgroups, which the launcher finds as well",
    "/run/systemd/private": "with a systemd, a container in one of its units is never repeated",
}
KINDS = {
    "compute": ("NVIDIA_VISIBLE_DEVICES=1",),
    "everything": ("NVIDIA_VISIBLE_DEVICES=0,2", "NVIDIA_DRIVER_CAPABILITIES=all"),
    "mig": ("NVIDIA_VISIBLE_DEVICES=0:1",),
    "features": ("NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_GDS=enabled", "NVIDIA_IMEX_CHANNELS=all"),
}
# Readers that look at something behind everybody's back.
MUTANTS = {
    "a-file": "os.path.exists('/etc/nvhook-unnoted')",
    "a-directory": "os.listdir('/etc')",
    "a-link": "os.path.islink(root + '/etc/ld.so.conf')",
    "a-walk": "open_path(root, '/usr/lib/nvhook-unnoted')",
}
MUTATE = """
import os, sys
sys.path.append({site!r})
from nvhook.host import inventory_cache
from nvhook.host.root_paths import open_path
from nvhook.doors import hook
find = inventory_cache.find_sockets
def mutant(root):
    {look}
    return find(root)
inventory_cache.find_sockets = mutant
hook.main({arguments!r})
"""


def trace(bundle, command: list[str]) -> Path:
    """Let a bundle's hook be this command, and watch it; return where its calls are written."""
    output = bundle.directory / "calls"
    options = ["-f", "-y", "-s", "4096", "-e", "trace=%file,setns", "-o", str(output)]
    entry = bundle.config["hooks"]["prestart"][0]
    entry |= {"path": shutil.which("strace"), "args": ["strace", *options, "--", *command]}
    return output


def looked_at(calls: str, bundle) -> dict[str, str]:
    """Return the paths looked at between config.json and the container's namespace, and how."""
    started = calls.index("config.json", calls.rindex("execve("))
    lines = calls[calls.index("\n", started) : calls.index(" setns(")].splitlines()
    found: dict[str, str] = {}
    for line in lines:
        call = CALL.match(line)
        if call is None or (named := PATH.search(call["arguments"])) is None or not named["path"]:
            continue
        path = named["path"]
        if not path.startswith("/"):
            path = f"{named['directory']}/{path}"
        elif "RESOLVE_IN_ROOT" in line:
            path = (named["directory"] or "").rstrip("/") + path
        path = re.sub(r"^/proc/[0-9]+(?=/|$)", "/proc/PID", path.replace("//", "/"))
        found.setdefault(path.rstrip("/") or "/", line)
    return found


def noted(recording: bytes, bundle) -> set[str]:
    """Return the paths that a recording has, in looks and operations."""
    root = str(bundle.root)
    found = set()
    for line in recording.decode().splitlines():
        kind, *fields = line.split("\t")
        if kind in ("text", "names", "inodes", "node", "stamp", "link"):
            found.add(fields[0])
        elif kind == "place":
            found.add(fields[0].rstrip("/") + fields[1])
        elif kind == "same":
            found |= {root + fields[0], root + fields[1]}
        elif kind in ("has", "entries", "bytes", "merge"):
            found.add(root + fields[0])
        elif kind in ("mount", "device"):
            found |= {fields[0], root + fields[1]}
    return {path.rstrip("/") or "/" for path in found}


def unnoted(bundle, recording: Path, calls: Path) -> list[str]:
    """Return the calls that look at what is neither noted nor on the way there, nor allowed."""
    known = noted(recording.read_bytes(), bundle)
    known |= {str(bundle.root), str(bundle.log), str(bundle.directory / "config.json")}
    allowed = (*ALLOWED, str(bundle.driver.directory / "run"))
    found = []
    for path, line in looked_at(calls.read_text(), bundle).items():
        is_step = "O_PATH" in line and any(each.startswith(f"{path}/") for each in known)
        is_allowed = any(
            path == each or (each != "/" and path.startswith(each.rstrip("/") + "/"))
            for each in allowed
        )
        if not (path in known or is_step or is_allowed):
            found.append(line)
    return found


@pytest.fixture
def prepared(recorded, bundles, driver, mig_driver, require):
    """Make a bundle of some kind on a host that has been looked at before."""
    require(shutil.which("strace") is not None, "needs strace")

    def prepare(kind: str):
        host = mig_driver if kind == "mig" else driver
        bundle = bundles(recorded, host=host)
        bundle.config["process"]["capabilities"]["bounding"].append("CAP_SYS_ADMIN")
        bundle.ask(*KINDS[kind])
        # Into a file: what is remembered is not looked for.
        command = [host.launcher, "list", "--config", bundle.settings, "--json"]
        recorded.view.run(*command)
        time.sleep(0.2)
        return bundle

    return prepare


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_start_looks_at_nothing_that_it_does_not_note(recorded, prepared, kind):
    bundle = prepared(kind)
    entry = bundle.config["hooks"]["prestart"][0]
    calls = trace(bundle, [entry["path"], *entry["args"][1:]])

    recorded.start(bundle)

    (recording,) = recordings(recorded)
    assert len(looked_at(calls.read_text(), bundle)) > 60
    assert unnoted(bundle, recording, calls) == []


@pytest.mark.parametrize("mutant", ["none", *MUTANTS])
def test_a_look_that_is_not_noted_is_found(recorded, prepared, mutant):
    bundle = prepared("compute")
    arguments = bundle.config["hooks"]["prestart"][0]["args"]
    look = MUTANTS.get(mutant, "pass")
    program = MUTATE.format(site=str(SITE), look=look, arguments=arguments[1:])
    python = subprocess.check_output(["readlink", "-f", sys.executable], text=True).strip()
    calls = trace(bundle, [python, "-I", "-S", "-c", program])

    recorded.start(bundle)

    (recording,) = recordings(recorded)
    assert bool(unnoted(bundle, recording, calls)) == (mutant != "none")
