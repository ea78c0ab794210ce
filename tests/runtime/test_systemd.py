"""A container in a unit of systemd keeps its GPU over everything systemd does to its cgroups."""

import json
import shutil
import time
from collections.abc import Iterator

import pytest

from tests.runtime.engine import Engine, Handler
from tests.runtime.expectations import ALLOWED, DENIED
from tests.runtime.systemd_view import SystemdView, open_systemd
from tests.runtime.test_recordings import is_repeated, share_settings


@pytest.fixture(scope="module")
def systemd(real_host, require) -> Iterator[SystemdView]:
    """A running systemd."""
    require(shutil.which("systemctl") is not None, "needs systemd")
    yield from open_systemd()


@pytest.fixture(params=["hook", "handler"])
def engine(request, systemd, place, driver) -> Engine:
    """runc with its systemd cgroup driver."""
    plain = Engine("runc", shutil.which("runc"), systemd, place / "state")
    plain.command.append("--systemd-cgroup")
    return plain if request.param == "hook" else Handler(plain, driver.launcher, "hook")


def _start(engine, bundles, *variables: str):
    bundle = bundles(engine)
    bundle.config["linux"]["cgroupsPath"] = f"system.slice:nvhook:{bundle.name}"
    if isinstance(engine, Handler):
        bundle.config.pop("hooks")
    bundle.ask(*variables)
    bundle.args("/bin/sleep", "60")
    engine.start_detached(bundle)
    return bundle


def _opens(engine, bundle, *indices: int) -> list[str]:
    """Return what opening the image's own nodes of these GPUs gives."""
    names = [f"/nodes/nvidia{bundle.driver.gpus[index].minor}" for index in indices]
    words = [word for name in names for word in ("open", name)]
    done = engine.view.run(*engine.command, "exec", bundle.name, "/probe", *words, check=False)
    return [line.partition(" = ")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "change",
    [
        ["daemon-reload"],
        ["set-property", "--runtime", "{unit}", "TasksMax=100"],
        ["set-property", "--runtime", "{unit}", "DeviceAllow=/dev/fuse rwm"],
        ["daemon-reexec"],
    ],
    ids=lambda change: change[0] + change[-1].partition("=")[0].removeprefix(change[0]),
)
def test_a_gpu_is_kept(engine, systemd, bundles, change):
    bundle = _start(engine, bundles, "NVIDIA_VISIBLE_DEVICES=1")
    unit = f"nvhook-{bundle.name}.scope"
    try:
        before = _opens(engine, bundle, 1, 0)
        systemd.run("systemctl", *[each.format(unit=unit) for each in change])
        systemd.run("systemctl", "daemon-reload")
        after = _opens(engine, bundle, 1, 0)
    finally:
        systemd.run(*engine.command, "delete", "-f", bundle.name, check=False)
    assert before == [ALLOWED, DENIED], bundle.logged()
    assert after == [ALLOWED, DENIED], bundle.logged()


def test_a_running_container_keeps_what_it_is_given_until_it_is_taken(systemd, place, bundles):
    """inject and eject tell systemd, too."""
    runc = Engine("runc", shutil.which("runc"), systemd, place / "state")
    runc.command.append("--systemd-cgroup")
    bundle = _start(runc, bundles)
    state = systemd.run(*runc.command, "state", bundle.name).stdout
    pid = str(json.loads(state)["pid"])
    command = [bundle.driver.launcher, "inject", "--config", bundle.settings, "--pid", pid]
    reload = ["systemctl", "daemon-reload"]
    try:
        systemd.run(*command, "--gpus", "1")
        given = _opens(runc, bundle, 1, 0)
        systemd.run(*reload)
        kept = _opens(runc, bundle, 1, 0)
        command[1] = "eject"
        systemd.run(*command)
        taken = _opens(runc, bundle, 1, 0)
        systemd.run(*reload)
        stays = _opens(runc, bundle, 1, 0)
        listed = systemd.run(
            "systemctl", "show", f"nvhook-{bundle.name}.scope", "-p", "DeviceAllow"
        )
    finally:
        systemd.run(*runc.command, "delete", "-f", bundle.name, check=False)
    assert (given, kept) == ([ALLOWED, DENIED], [ALLOWED, DENIED])
    assert (taken, stays) == ([DENIED, DENIED], [DENIED, DENIED])
    assert "/dev/char/195:" not in listed.stdout


def test_without_the_units_list_a_reload_takes_it_away(systemd, place, driver, bundles):
    """What the others would show if nvhook did not tell systemd."""
    runc = Engine("runc", shutil.which("runc"), systemd, place / "state")
    runc.command.append("--systemd-cgroup")
    hide = f"mount -t tmpfs none /run/systemd && {driver.launcher} "
    bundle = bundles(runc)
    entry = bundle.hook()
    hidden = f"unshare --mount sh -c '{hide} {' '.join(entry['args'][1:])}'"
    bundle.config["hooks"]["prestart"] = [
        {"path": "/bin/sh", "args": ["sh", "-c", hidden], "env": entry["env"]}
    ]
    bundle.config["linux"]["cgroupsPath"] = f"system.slice:nvhook:{bundle.name}"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sleep", "60")
    runc.start_detached(bundle)
    try:
        before = _opens(runc, bundle, 1)
        systemd.run("systemctl", "daemon-reload")
        after = _opens(runc, bundle, 1)
    finally:
        systemd.run(*runc.command, "delete", "-f", bundle.name, check=False)
    assert (before, after) == ([ALLOWED], [DENIED])


def test_what_was_done_outside_of_units_tells_systemd_when_repeated_in_one(systemd, place, bundles):
    """An engine whose cgroups are its own comes first, of the same kind and with the same hook."""
    cgroups = Engine("runc", shutil.which("runc"), systemd, place / "state")
    first, second = bundles(cgroups), bundles(cgroups)
    time.sleep(0.2)  # a younger configuration is not recorded
    for bundle in (first, second):
        share_settings(bundle, first)
        bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
        cgroups.start(bundle)
        assert is_repeated(bundle) == (bundle is second)
    runc = Engine("runc", shutil.which("runc"), systemd, place / "state")
    runc.command.append("--systemd-cgroup")
    bundle = bundles(runc)
    share_settings(bundle, first)
    bundle.config["linux"]["cgroupsPath"] = f"system.slice:nvhook:{bundle.name}"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sleep", "60")
    runc.start_detached(bundle)
    try:
        before = _opens(runc, bundle, 1, 0)
        systemd.run("systemctl", "daemon-reload")
        after = _opens(runc, bundle, 1, 0)
    finally:
        systemd.run(*runc.command, "delete", "-f", bundle.name, check=False)
    assert is_repeated(bundle)
    assert before == [ALLOWED, DENIED], bundle.logged()
    assert after == [ALLOWED, DENIED], bundle.logged()


def test_a_unit_that_restricts_nothing_stays_so(systemd, place, driver, bundles):
    """With a list, it would be closed to every device that is not on it."""
    runc = Engine("runc", shutil.which("runc"), systemd, place / "state")
    bundle = bundles(runc)
    scope = f"{bundle.name}.scope"
    bundle.config["linux"].pop("cgroupsPath")
    bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    bundle.config["linux"]["cgroupsPath"] = f"/system.slice/{scope}/inner"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sleep", "60")
    bundle.write()
    systemd.run("systemd-run", f"--unit={scope}", "--scope", "--property=Delegate=yes", "true")
    runc.start_detached(bundle)
    try:
        shown = systemd.run("systemctl", "show", scope, "--property=DeviceAllow", check=False)
        answers = _opens(runc, bundle, 1, 0)
    finally:
        systemd.run(*runc.command, "delete", "-f", bundle.name, check=False)
    assert shown.stdout.strip() in {"", "DeviceAllow="}
    assert answers == [ALLOWED, ALLOWED]
