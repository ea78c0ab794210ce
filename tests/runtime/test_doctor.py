"""nvhook doctor on real containers, whole and broken: it names what is broken."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import nvhook
from nvhook.sim import driver as sim_driver
from tests.runtime.bundle import Bundle
from tests.runtime.engine import Engine
from tests.runtime.simulated import MINORS
from tests.runtime.test_cuda_compat import NEWER, furnish

SITE = Path(nvhook.__file__).parents[1]
FILES = 'exec "$@" <"$0" >>"$0" 2>&1'  # a container that goes on would keep our pipes open
COMPUTE_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
# Attach a program that denies every device of a major to a cgroup directory.
DENY_MAJOR = """
import os, struct, sys
sys.path.insert(0, sys.argv[1])
from nvhook._native import call, lib
from nvhook.kernel import programs
def insn(code, target=0, source=0, offset=0, imm=0):
    return struct.pack("<BBhi", code, source << 4 | target, offset, imm)
code = insn(0x61, 2, 1, 4) + insn(0xB7, 0, imm=1) + insn(0x55, 2, offset=1, imm=int(sys.argv[3]))
program = programs.load(code + insn(0xB7, 0, imm=0) + insn(0x95), b"deny")
directory = os.open(sys.argv[2], os.O_RDONLY)
call(lib.nvh_bpf_prog_attach, directory, program, programs.ALLOW_MULTI, -1)
"""


class Running:
    """A container that goes on, and what doctor says of it."""

    def __init__(self, engine: Engine, bundle: Bundle) -> None:
        self.engine = engine
        self.bundle = bundle
        bundle.write()
        output = bundle.directory / "output"
        output.touch()
        run = [*engine.command, "run", "-d", "-b", bundle.directory, bundle.name]
        done = engine.view.run("sh", "-c", FILES, output, *run, check=False)
        assert done.returncode == 0, output.read_text() + bundle.logged()
        state = engine.view.run(*engine.command, "state", bundle.name).stdout
        self.pid = int(json.loads(state)["pid"])

    def inside(self, *command: str) -> None:
        """Run a program of the container in its mount namespace, as the host's root."""
        self.engine.view.run("nsenter", f"--mount=/proc/{self.pid}/ns/mnt", *command)

    def doctor(self, *options: str | Path, settings: Path | None = None) -> dict[str, Any]:
        """Return the checks by name; the exit status must fit."""
        options = options or ("--pid", str(self.pid))
        return doctor(self.engine, settings or self.bundle.settings, *options)

    def remove(self) -> None:
        self.engine.view.run(*self.engine.command, "delete", "-f", self.bundle.name)


def doctor(engine: Engine, settings: Path, *options: str | Path) -> dict[str, Any]:
    launcher = Path(sys.executable).with_name("nvhook")
    command = [launcher, "doctor", "--config", settings, "--json", *options]
    done = engine.view.run(*command, check=False)
    assert not done.stderr, done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    failed = any(check["status"] == "failed" for check in checks.values())
    assert done.returncode == (1 if failed else 0)
    for check in checks.values():
        wrong = check["status"] in {"failed", "warning"}
        assert bool(check["fix"]) == bool(check["expected"]) == wrong, check
        assert check["saw"], check
    return checks


@pytest.fixture
def start() -> Iterator[Callable[[Engine, Bundle], Running]]:
    """Start containers; they are removed afterwards."""
    started: list[Running] = []

    def run(engine: Engine, bundle: Bundle) -> Running:
        if bundle.config["process"]["args"] == ["/probe"]:
            bundle.args("/bin/sleep", "1000")
        started.append(Running(engine, bundle))
        return started[-1]

    yield run
    for each in started:
        each.remove()


@pytest.fixture
def runc_v2(pure_v2, place) -> Engine:
    """runc where device programs decide."""
    program = shutil.which("runc")
    assert program is not None
    return Engine("runc", Path(program), pure_v2, place / "state")


@pytest.fixture(params=["hybrid", "v2"])
def each_cgroup(request, runc, runc_v2) -> Engine:
    """runc on both kinds of device cgroup."""
    return runc if request.param == "hybrid" else runc_v2


def statuses(checks: dict[str, Any]) -> dict[str, str]:
    return {name: check["status"] for name, check in checks.items()}


def broken(checks: dict[str, Any]) -> set[str]:
    return {name for name, check in checks.items() if check["status"] in {"failed", "warning"}}


def bind_nodes(bundle: Bundle, *names: str) -> None:
    """Give nodes without any device rule, as a bind mount does."""
    for name in names:
        bundle.config["mounts"].append(
            {
                "destination": f"/dev/{name}",
                "source": str(bundle.driver.directory / "dev" / name),
                "options": ["bind"],
            }
        )


def test_a_container_that_has_what_it_asked_for(each_engine, bundles, start):
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1,2")

    checks = start(each_engine, bundle).doctor()

    assert statuses(checks) == {
        "configuration": "ok",
        "container-request": "ok",
        "container-gpus": "ok",
        "container-nodes": "ok",
        "container-device-rules": "ok",
        "container-open": "ok",
        "container-libraries": "ok",
        "container-driver-version": "ok",
        "container-params": "not-applicable",
    }
    assert "GPU 1 (nvidia3), GPU 2 (nvidia1)" in checks["container-request"]["saw"]
    assert "no driver answers" in checks["container-open"]["saw"]


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
def test_a_user_namespace_is_no_obstacle(each_engine, bundles, start, readonly):
    bundle = bundles(each_engine)
    bundle.config["root"]["readonly"] = readonly
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0")
    bundle.use_user_namespace(owned=True)

    assert not broken(start(each_engine, bundle).doctor())


def test_a_container_that_asks_for_nothing(runc, bundles, start):
    checks = start(runc, bundles(runc)).doctor()

    assert statuses(checks) == {"configuration": "ok", "container-request": "not-applicable"}


def test_asked_for_more_than_it_got(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sh", "-c", "NVIDIA_VISIBLE_DEVICES=1,3 exec /bin/sleep 1000")

    checks = start(runc, bundle).doctor()

    assert broken(checks) == {"container-gpus", "container-nodes", "container-device-rules"}
    assert checks["container-gpus"]["saw"] == "2 asked for, 1 there: no GPU 3 (nvidia0)"
    assert checks["container-nodes"]["saw"] == "/dev/nvidia0 is missing"
    assert "denied: 195:0, by devices.list" in checks["container-device-rules"]["saw"]


def test_a_node_is_missing(each_cgroup, bundles, start):
    bundle = bundles(each_cgroup)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(each_cgroup, bundle)
    container.inside("/bin/umount", "/dev/nvidia3")

    checks = container.doctor()

    assert broken(checks) == {"container-nodes", "container-gpus"}
    assert checks["container-nodes"]["saw"] == "/dev/nvidia3 is no device node"
    assert checks["container-gpus"]["saw"] == "1 asked for, 0 there: no GPU 1 (nvidia3)"


def test_a_node_has_another_devices_numbers(runc, bundles, start, driver):
    """As after a reboot that changed them, or from a wrong --device."""
    bundle = bundles(runc)
    del bundle.config["hooks"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bind_nodes(bundle, *COMPUTE_NODES)
    other = str(driver.directory / "dev/nvidia2")
    bundle.config["mounts"].append(
        {"destination": "/dev/nvidia3", "source": other, "options": ["bind"]}
    )

    checks = start(runc, bundle).doctor()

    assert checks["container-nodes"]["saw"] == "/dev/nvidia3 is 195:2"
    assert checks["container-gpus"]["status"] == "failed"
    assert "/dev/nvidia3" not in checks["container-open"]["saw"]


def test_no_hook_ran(runc, bundles, start):
    bundle = bundles(runc)
    del bundle.config["hooks"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=all")

    checks = start(runc, bundle).doctor()

    assert checks["container-gpus"]["saw"].startswith("4 asked for, 0 there")
    assert checks["container-open"]["status"] == "not-checked"
    assert "does not list libcuda.so.1" in checks["container-libraries"]["saw"]


def test_denied_by_the_containers_own_cgroup(each_cgroup, bundles, start):
    bundle = bundles(each_cgroup)
    del bundle.config["hooks"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bind_nodes(bundle, *COMPUTE_NODES, "nvidia3")

    checks = start(each_cgroup, bundle).doctor()

    assert checks["container-nodes"]["status"] == "ok"
    rules, opened = checks["container-device-rules"], checks["container-open"]
    by = "program" if each_cgroup.view.name == "v2" else "devices.list"
    assert f"by {by}" in rules["saw"]
    assert bundle.name in rules["saw"]
    assert "above" not in rules["saw"]
    assert "195:3" in rules["saw"]
    assert "/dev/nvidia3: Operation not permitted" in opened["saw"]
    assert "nvhook-runtime or CDI" in rules["fix"]


def test_denied_by_a_cgroup_above(runc_v2, bundles, start):
    bundle = bundles(runc_v2)
    parent = f"{bundle.name}-slice"
    bundle.config["linux"]["cgroupsPath"] = f"/{parent}/{bundle.name}"
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc_v2, bundle)
    directory = f"/sys/fs/cgroup/{parent}"
    try:
        runc_v2.view.run(sys.executable, "-I", "-c", DENY_MAJOR, SITE, directory, "195")

        checks = container.doctor()
    finally:
        container.remove()
        runc_v2.view.run("rmdir", directory)

    rules = checks["container-device-rules"]
    assert broken(checks) == {"container-device-rules", "container-open"}
    assert f"{directory}, above the container's" in rules["saw"]
    assert "195:3" in rules["saw"]
    assert "511" not in rules["saw"]
    assert "DeviceAllow" in rules["fix"]
    assert "nvidia-uvm" not in checks["container-open"]["saw"]


def test_an_exception_that_no_list_shows(runc, bundles, start):
    """devices.list of an all-allowing cgroup v1 hides what was denied: only opening tells."""
    bundle = bundles(runc)
    bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    deny = f"echo 'c 195:3 rwm' >/sys/fs/cgroup/devices/{bundle.name}/devices.deny"
    runc.view.run("sh", "-c", deny)

    checks = container.doctor()

    assert checks["container-device-rules"]["status"] == "ok"
    assert checks["container-open"]["saw"] == "/dev/nvidia3: Operation not permitted"


def test_a_library_that_the_loader_cache_does_not_list(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    (bundle.root / "etc/ld.so.cache").unlink()

    checks = container.doctor()

    assert broken(checks) == {"container-libraries"}
    saw = checks["container-libraries"]["saw"]
    assert "does not list libcuda.so.1" in saw
    assert "libcuda.so.550.54.14" in saw
    assert "is mounted" in saw


def test_a_loader_cache_that_names_what_is_not_there(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    (bundle.root / "usr/lib64/libcuda.so.1").unlink()

    saw = container.doctor()["container-libraries"]["saw"]

    assert saw == "the loader cache names /usr/lib64/libcuda.so.1, which does not exist"


def test_a_loader_cache_that_is_no_loader_cache(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    bundle.put("/etc/ld.so.cache", b"not a cache\n" * 10)

    assert broken(container.doctor()) == {"container-libraries"}


def test_libraries_of_the_driver_before_an_update(runc, bundles, start, place):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    updated = place / "updated"
    settings = Path(sim_driver.create(str(updated), driver_version="560.35.03", minors=MINORS))
    try:
        checks = container.doctor(settings=settings)
    finally:
        shutil.rmtree(updated)  # noqa: TID251 - a host directory of this test

    assert "container-driver-version" in broken(checks)
    saw = checks["container-driver-version"]["saw"]
    assert "libcuda.so.550.54.14" in saw
    assert "the kernel module is 560.35.03" in saw


def test_an_image_whose_own_newer_libcuda_wins(runc, bundles, start):
    bundle = bundles(runc)
    furnish(bundle, NEWER)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    checks = start(runc, bundle).doctor()

    assert not broken(checks)
    assert "libcuda.so.1 = /usr/local/cuda/compat" in checks["container-libraries"]["saw"]


def test_a_gpu_that_this_host_does_not_have(runc, bundles, start):
    bundle = bundles(runc)
    del bundle.config["hooks"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=GPU-00000000-1111-2222-3333-444444444444")

    checks = start(runc, bundle).doctor()

    assert broken(checks) == {"container-request"}
    assert "unknown device id GPU-00000000" in checks["container-request"]["saw"]
    assert "nvhook list" in checks["container-request"]["fix"]


def test_a_request_that_the_configuration_does_not_believe(runc, bundles, start, driver):
    bundle = bundles(runc)
    driver.configuration(bundle.settings, bundle.log, accept_envvar_when_unprivileged="false")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    checks = start(runc, bundle).doctor()

    assert broken(checks) == {"container-request"}
    assert "not accepted from an unprivileged container" in checks["container-request"]["saw"]
    assert "accept-envvar-when-unprivileged" in checks["container-request"]["fix"]


def test_params_that_are_not_masked(runc, bundles, start, driver):
    bundle = bundles(runc)
    source = bundle.directory / "proc-driver"
    shutil.copytree(driver.directory / "proc/driver", source)
    mount = (
        f"exec nsenter --mount=/proc/$pid/ns/mnt mount --bind {source} {bundle.root}/proc/driver"
    )
    bundle.config["hooks"]["prestart"].append(bundle.shell_hook(mount))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    checks = start(runc, bundle).doctor()

    assert broken(checks) == {"container-params"}
    assert checks["container-params"]["saw"] == "ModifyDeviceFiles: 1"


def test_params_that_are_masked(runc, bundles, start, driver):
    bundle = bundles(runc)
    source = bundle.directory / "proc-driver"
    shutil.copytree(driver.directory / "proc/driver", source)
    mount = (
        f"exec nsenter --mount=/proc/$pid/ns/mnt mount --bind {source} {bundle.root}/proc/driver"
    )
    bundle.config["hooks"]["prestart"].insert(0, bundle.shell_hook(mount))
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")

    assert start(runc, bundle).doctor()["container-params"]["saw"] == "ModifyDeviceFiles: 0"


def test_nodes_that_the_containers_user_may_not_open(runc, bundles, start, place):
    closed = place / "closed"
    settings = Path(sim_driver.create(str(closed), minors=MINORS))
    for name in (*COMPUTE_NODES, "nvidia3"):
        (closed / "dev" / name).chmod(0o660)
    bundle = bundles(runc)
    bundle.settings.write_text(settings.read_text())
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    try:
        checks = start(runc, bundle).doctor()
    finally:
        shutil.rmtree(closed)  # noqa: TID251 - a host directory of this test

    assert broken(checks) == {"container-open"}
    assert "/dev/nvidia3: Permission denied" in checks["container-open"]["saw"]
    assert "0666" in checks["container-open"]["fix"]


def test_a_container_that_got_its_nodes_from_its_engine(runc, bundles, start, driver):
    """As CDI and --device give them: nothing in the environment says so."""
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=void")
    bind_nodes(bundle, "nvidiactl", "nvidia3")

    checks = start(runc, bundle).doctor()

    assert "the nodes it has: GPU 1 (nvidia3)" in checks["container-request"]["saw"]
    assert "/dev/nvidia-uvm is missing" in checks["container-nodes"]["saw"]


def test_a_process_of_the_host_is_no_container(runc, bundles):
    checks = doctor(runc, bundles(runc).settings, "--pid", str(runc.view.pid))
    # The view is a mount namespace of its own; what is run in it shares it.
    assert broken(checks) == {"container-process"}
    assert "not a container" in checks["container-process"]["saw"]


def test_doctor_leaves_the_container_and_the_host_as_they_are(each_cgroup, bundles, start):
    bundle = bundles(each_cgroup)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(each_cgroup, bundle)
    before = bundle.tree()
    mounts = Path(f"/proc/{container.pid}/mountinfo").read_text()

    container.doctor()

    assert bundle.tree() == before
    assert Path(f"/proc/{container.pid}/mountinfo").read_text() == mounts
    processes = each_cgroup.view.run(*each_cgroup.command, "ps", "-f", "json", bundle.name).stdout
    assert json.loads(processes) == [container.pid]


def test_a_hostile_image_is_not_believed(runc, bundles, start, driver):
    """A link out of the root, and a pipe for a node: no file of the host is read, nothing hangs."""
    bundle = bundles(runc)
    del bundle.config["hooks"]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    hosts = driver.directory / "root/etc/ld.so.cache"  # lists libcuda
    bundle.link("/etc/ld.so.cache", f"../../../../../../../..{hosts}")
    os.mkfifo(bundle.root / "pipe")
    bundle.config["mounts"].append(
        {"destination": "/dev/nvidia3", "source": str(bundle.root / "pipe"), "options": ["bind"]}
    )

    checks = start(runc, bundle).doctor()

    assert "/dev/nvidia3 is no device node" in checks["container-nodes"]["saw"]
    assert "does not list libcuda.so.1" in checks["container-libraries"]["saw"]


def test_a_bundle_that_is_not_running(runc, bundles):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.write()

    checks = doctor(runc, bundle.settings, "--bundle", bundle.directory)

    assert statuses(checks) == {
        "configuration": "ok",
        "container-request": "ok",
        "bundle-hook": "ok",
        "container-open": "not-checked",
    }


def test_a_bundle_whose_engine_noted_the_process(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    (bundle.directory / "init.pid").write_text(str(container.pid))

    checks = container.doctor("--bundle", bundle.directory)

    assert checks["bundle-hook"]["status"] == "ok"
    assert checks["container-open"]["status"] == "ok"


def test_the_number_of_a_process_that_came_later_is_not_believed(runc, bundles, start):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    container = start(runc, bundle)
    note = bundle.directory / "init.pid"
    note.write_text(str(container.pid))
    os.utime(note, (1, 1))

    checks = container.doctor("--bundle", bundle.directory)

    assert checks["container-open"]["status"] == "not-checked"
    assert "not running" in checks["container-open"]["saw"]


def _without_hooks(bundle: Bundle) -> None:
    del bundle.config["hooks"]


def _with_a_missing_hook(bundle: Bundle) -> None:
    bundle.config["hooks"]["prestart"][0]["path"] = "/nowhere/nvhook"


def _with_a_late_hook(bundle: Bundle) -> None:
    bundle.config["hooks"] = {"createContainer": bundle.config["hooks"]["prestart"]}


def _without_environment(bundle: Bundle) -> None:
    del bundle.config["hooks"]["prestart"][0]["env"]


@pytest.mark.parametrize(
    ("change", "status", "saw"),
    [
        (_without_hooks, "failed", "neither a GPU hook nor an NVIDIA device"),
        (_with_a_missing_hook, "failed", "/nowhere/nvhook can't be executed"),
        (_with_a_late_hook, "failed", "a stage that runs in the container"),
        (_without_environment, "warning", "has no env"),
    ],
)
def test_a_bundle_with_a_wrong_hook(runc, bundles, change, status, saw):
    bundle = bundles(runc)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    change(bundle)
    bundle.write()

    check = doctor(runc, bundle.settings, "--bundle", bundle.directory)["bundle-hook"]

    assert check["status"] == status
    assert saw in check["saw"]
