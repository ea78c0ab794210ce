"""nvhook inject and eject: a GPU given to a container that runs, used, and taken away."""

import json
import os
import stat
import time

import pytest

from nvhook.formats import ldcache
from nvhook.formats.ldcache_splice import splice
from nvhook.kernel.root import SHARED
from tests.runtime.live import Live

KINDS = [
    pytest.param(readonly, user, id=f"{'ro' if readonly else 'rw'}-{user or 'root'}")
    for readonly in (False, True)
    for user in ("", "own-image", "host-owned-image")
]

SMALL = splice(b"", [("libold.so.1", "/opt/libold.so.1", 0x303)])


@pytest.mark.parametrize(("readonly", "user"), KINDS)
def test_inject_use_eject(live, readonly, user):
    container = live(readonly, user)
    before = container.snapshot()
    assert container.opens(1, 2, at="nodes") == ["EPERM", "EPERM"]

    done = container.inject("1")

    assert [gpu["index"] for gpu in done["gpus"]] == [1]
    assert done["changed"]
    assert container.opens(1) == ["ENXIO"]
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "EPERM"]
    assert container.smi() == [container.driver.gpus[1].uuid]

    container.eject()

    assert container.opens(1, 2, at="nodes") == ["EPERM", "EPERM"]
    assert container.snapshot() == before
    assert container.journals() == []


def test_a_second_inject_does_nothing_and_says_so(live):
    container = live()
    container.inject("1")
    between = container.snapshot()

    assert not container.inject("1")["changed"]
    text = container.nvhook("inject", "--gpus", "1").stdout

    assert "already: nothing done" in text
    assert container.snapshot() == between


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
def test_the_driver_stays_as_long_as_a_gpu_does(live, readonly):
    container = live(readonly)
    before = container.snapshot()
    container.inject("1")
    container.inject("0,2")
    assert container.smi() == [container.driver.gpus[index].uuid for index in (0, 1, 2)]

    container.eject("1")

    assert container.opens(0, 1, 2, at="nodes") == ["ENXIO", "EPERM", "ENXIO"]
    assert container.probe(("open", f"/dev/{container.node(1)}")) == ["ENOENT"]
    assert container.smi() == [container.driver.gpus[index].uuid for index in (0, 2)]

    container.eject("2")
    container.eject("0")

    assert container.snapshot() == before


def test_a_node_that_the_container_makes_is_of_no_use(live):
    container = live()
    container.inject("1")
    minors = [str(container.driver.gpus[gpu].minor) for gpu in (1, 2)]
    made = [("mknod", f"/made{minor}", "195", minor) for minor in minors]
    assert container.probe(*made) == ["OK", "OK"]

    assert container.probe(*[("open", f"/made{minor}") for minor in minors]) == ["ENXIO", "EPERM"]
    container.eject("1")
    assert container.probe(*[("open", f"/made{minor}") for minor in minors]) == ["EPERM", "EPERM"]


def test_what_a_process_still_holds_is_reported(live, driver):
    # Without a driver nothing can be opened for use: a handle counts, too.
    node = f"/dev/nvidia{driver.gpus[1].minor}"
    words = ("/probe", "wait", "/go", "hold", node, "wait", "/stop")
    container = live(change=lambda bundle: bundle.args(*words))
    container.inject("0,1")
    container.bundle.put("/go")
    for _ in range(500):
        if f"hold {node} = OK" in (container.bundle.directory / "output").read_text():
            break
        time.sleep(0.01)

    assert container.eject("0")["holders"] == []
    done = container.eject("1")

    bus = container.driver.gpus[1].pci_bus_id
    assert done["holders"] == [{"pid": container.pid, "gpus": [bus]}]


@pytest.mark.parametrize("by", ["init", "other"])
def test_a_process_in_a_cgroup_below_the_containers(live, by):
    """As systemd or a container engine inside of the container makes them."""
    container = live()
    before = container.snapshot()
    other = container.start("/bin/sleep", "1000")
    for version in (1, 2):
        below = container.make_cgroup(version, "below")
        container.move(other, below)
    pid = container.pid if by == "init" else other

    container.inject("1", pid=pid)

    opens = ("sh", "-c", "echo $$ >$0/cgroup.procs; exec nsenter -m -t $1 /probe open $2")
    for version in (1, 2):
        place = container.make_cgroup(version, "below")
        if place is None:
            continue
        done = container.engine.view.run(
            *opens, place, str(container.pid), f"/nodes/{container.node(1)}", check=False
        )
        assert "ENXIO" in done.stdout, (done, version)
    container.eject(pid=other)
    container.kill(other)
    for version in (1, 2):
        container.remove_cgroup(version, "below")

    assert container.opens(1, at="nodes") == ["EPERM"]
    assert container.snapshot() == before


def test_the_hosts_namespaces_are_refused_unless_forced(runc, driver, place):
    settings = driver.configuration(place / "nvhook.toml", place / "nvhook.log")
    command = [driver.launcher, "inject", "--config", settings, "--gpus", "1", "--pid"]

    refused = runc.view.run(*command, str(os.getpid()), check=False)
    own = runc.view.run(*command, str(runc.view.pid), check=False)
    gone = runc.view.run(*command, "4194304", check=False)

    assert refused.returncode == own.returncode == gone.returncode == 1
    assert "the host's own root directory" in refused.stderr
    assert "the host's mount namespace" in own.stderr
    assert "--force" in own.stderr
    assert "can't be opened" in gone.stderr


def test_a_gpu_from_the_hook_is_ejected_too(each_engine, bundles):
    """Access is revoked and the node unmounted; what the hook made stays."""
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,1")
    container = Live(each_engine, bundle)
    try:
        assert not container.inject("1")["changed"]
        assert container.inject("2")["changed"]
        assert container.opens(0, 1, 2) == ["ENXIO"] * 3

        done = container.eject("1")

        bus = container.driver.gpus[1].pci_bus_id
        assert done["given_at_creation"] == [bus]
        assert container.opens(0, 1, 2, at="nodes") == ["ENXIO", "EPERM", "ENXIO"]
        assert container.smi() == [container.driver.gpus[index].uuid for index in (0, 2)]
        container.eject()
        assert container.opens(0, 1, 2, at="nodes") == ["EPERM"] * 3
        container.inject("1")
        assert container.opens(0, 1, 2, at="nodes") == ["EPERM", "ENXIO", "EPERM"]
    finally:
        container.delete()


def rendering(container: Live, gpu: int) -> list[str]:
    """Return what a GPU's node for rendering gives: by its device, and in its place."""
    status = (container.driver.directory / f"dev/dri/renderD{128 + gpu}").stat()
    numbers = str(os.major(status.st_rdev)), str(os.minor(status.st_rdev))
    made = f"/render{gpu}-{time.time_ns()}"
    questions = [
        ("mknod", made, *numbers),
        ("open", made),
        ("open", f"/dev/dri/renderD{128 + gpu}"),
    ]
    return container.probe(*questions)[1:]


def test_a_gpus_rendering_nodes_come_and_go_with_it(live):
    container = live()
    before = container.snapshot()
    container.inject("1", "--capabilities", "graphics")
    container.inject("2", "--capabilities", "graphics")
    assert rendering(container, 0) == ["EPERM", "ENOENT"]
    assert rendering(container, 1) == rendering(container, 2) == ["ENXIO", "ENXIO"]

    container.eject("1")

    assert rendering(container, 1) == ["EPERM", "ENOENT"]
    assert rendering(container, 2) == ["ENXIO", "ENXIO"]
    container.eject()
    assert rendering(container, 2) == ["EPERM", "ENOENT"]
    files = container.snapshot().pop("files")
    assert {name for name in files if not name.startswith("render")} == {*before["files"]}
    assert container.snapshot()["mounts"] == before["mounts"]


@pytest.mark.parametrize("capability", ["compute", "graphics"])
def test_rendering_nodes_of_a_gpu_from_the_hook_are_ejected_too(each_engine, bundles, capability):
    """Whether the hook gave them or a later inject."""
    bundle = bundles(each_engine)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,1", f"NVIDIA_DRIVER_CAPABILITIES={capability}")
    container = Live(each_engine, bundle)
    try:
        done = container.inject("1", "--capabilities", "graphics")
        assert done["changed"] is (capability == "compute")
        assert rendering(container, 1) == ["ENXIO", "ENXIO"]

        done = container.eject("1")

        assert done["given_at_creation"] == [container.driver.gpus[1].pci_bus_id]
        assert container.opens(0, 1, at="nodes") == ["ENXIO", "EPERM"]
        by_device, in_place = rendering(container, 1)
        assert by_device == "EPERM"
        assert in_place != "ENXIO"
        assert rendering(container, 0)[0] == ("ENXIO" if capability == "graphics" else "EPERM")
    finally:
        container.delete()


def test_a_gpu_that_the_runtime_itself_allows(live, driver):
    """As with nvhook-runtime, CDI and docker --device: the rule is in the runtime's program."""
    minor = driver.gpus[1].minor

    def allow(bundle) -> None:
        rule = {"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"}
        bundle.config["linux"]["resources"]["devices"].append(rule)

    container = live(change=allow)
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "EPERM"]

    done = container.eject("1")

    assert done["given_at_creation"] == [container.driver.gpus[1].pci_bus_id]
    assert container.opens(1, 2, at="nodes") == ["EPERM", "EPERM"]
    container.inject("1,2")
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "ENXIO"]
    container.eject("1")
    assert container.opens(1, 2, at="nodes") == ["EPERM", "ENXIO"]


def _allow(minor: int | None, access: str = "rw"):
    """Return a change of config.json: a rule of the runtime's own, for all minors if None."""

    def change(bundle) -> None:
        rule = {"allow": True, "type": "c", "major": 195, "access": access}
        if minor is not None:
            rule["minor"] = minor
        bundle.config["linux"]["resources"]["devices"].append(rule)

    return change


def test_a_gpu_without_its_node_is_ejected_with_all_others(live, driver):
    """The container has moved the node away, and could move it back."""
    container = live(change=_allow(driver.gpus[1].minor))
    assert container.opens(1, at="nodes") == ["ENXIO"]

    done = container.eject()

    assert done["given_at_creation"] == [driver.gpus[1].pci_bus_id]
    assert container.opens(1, at="nodes") == ["EPERM"]
    assert container.eject()["gpus"] == []


def test_an_injected_node_with_an_older_rule_is_ejected_with_it(live, driver):
    container = live(change=_allow(driver.gpus[1].minor))
    container.inject("1")

    container.eject("1")

    assert container.probe(("open", f"/dev/{container.node(1)}")) == ["ENOENT"]
    assert container.opens(1, at="nodes") == ["EPERM"]


def test_a_wider_rule_is_revoked_or_said_to_stay(live):
    """v1 has no denial within a wider rule: what still can be opened is not called taken."""
    container = live(change=_allow(None))
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "ENXIO"]

    result = container.nvhook("eject", "--gpus", "1", "--json")

    opened = container.opens(1, 2, at="nodes")
    assert opened[1] == "ENXIO"
    stays = opened[0] == "ENXIO"
    _assert_says(result, stays, "a wider rule (c MAJOR:* rw) allows it")
    assert stays == (container.rules() != "")


def test_a_container_that_may_open_everything_can_still_do_so(live):
    """In v1 all is undone, and the exit status says that this is not enough; v2 has denials."""
    container = live(change=_allow_all)
    before = container.snapshot()
    container.inject("1")
    assert container.smi() == [container.driver.gpus[1].uuid]

    result = container.nvhook("eject", "--gpus", "1", "--json")

    after = container.snapshot()
    if container.rules():
        assert after == before
        assert "nothing done" in container.nvhook("eject", "--gpus", "1").stdout
    else:
        assert (after["mounts"], after["files"]) == (before["mounts"], before["files"])
    assert container.opens(1, 2, at="nodes") == ["ENXIO" if container.rules() else "EPERM", "ENXIO"]
    _assert_says(result, container.rules() != "", "the container may open every device")
    assert json.loads(result.stdout)["gpus"] == [container.driver.gpus[1].pci_bus_id]


def _allow_all(bundle) -> None:
    bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]


def _assert_says(result, stays: bool, why: str) -> None:
    """Check that a script can see whether access was taken, and a person why not."""
    done = json.loads(result.stdout)
    assert done["revoked"] is not stays
    assert any(why in each["why"] for each in done["left"]) is stays
    assert result.returncode == (1 if stays else 0)
    assert len(result.stderr.splitlines()) == result.returncode
    assert (why in result.stderr) is stays


@pytest.mark.parametrize("access", ["r", "w", "m", "rwm"])
def test_an_older_rule_for_a_part_of_the_access(live, driver, access):
    """A failed inject leaves it, eject takes the device whoever gave it, inject gives it back."""
    container = live(change=_allow(driver.gpus[1].minor, access))
    before = container.snapshot()
    result = container.nvhook("inject", "--gpus", "1", env=("NVHOOK_FAULT=20",))
    assert result.returncode in {-9, 137}
    container.reconcile()
    assert container.snapshot() == before

    container.inject("1")
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "EPERM"]
    done = container.eject("1")

    gone = [] if access == "m" else [driver.gpus[1].pci_bus_id]
    assert done["given_at_creation"] == gone
    assert container.opens(1, at="nodes") == ["EPERM"]
    container.inject("1")
    assert container.opens(1, at="nodes") == ["ENXIO"]


@pytest.mark.parametrize("fault", [12, 40])
def test_older_rules_in_a_v1_cgroup_below_are_given_back(live, driver, fault):
    """A denial above takes them: what was listed is listed again."""
    container = live(change=_allow(None, "r"))
    before = container.snapshot()
    below = container.make_cgroup(1, "below")
    rule = f"c 195:{driver.gpus[1].minor} r"
    if below is not None:
        (below / "devices.deny").write_text("c 195:* r")
        (below / "devices.allow").write_text(rule)
        listed = (below / "devices.list").read_text()
        assert rule in listed

    result = container.nvhook("inject", "--gpus", "1", env=(f"NVHOOK_FAULT={fault}",))
    assert result.returncode in {-9, 137}
    container.reconcile()

    if below is not None:
        assert (below / "devices.list").read_text() == listed
    container.remove_cgroup(1, "below")
    assert container.snapshot() == before


def test_a_failed_inject_does_not_give_back_what_was_ejected_before(live, driver):
    container = live(change=_allow(driver.gpus[1].minor))
    container.eject("1")
    container.bundle.put("/usr/bin", b"not a directory")
    before = container.snapshot()

    assert container.nvhook("inject", "--gpus", "1").returncode == 1

    assert container.opens(1, at="nodes") == ["EPERM"]
    assert container.snapshot() == before


def test_a_mount_that_the_host_shares_is_not_unmounted(live, driver, place):
    """The container leads a path into a shared volume: unmounting there would reach the host."""
    names = [f"renderD{128 + index}" for index in range(4)]  # one of them is GPU 1's
    volume = place / "volume"
    volume.mkdir()
    for name in names:
        (volume / name).touch()

    def share(bundle) -> None:
        view = bundle.view
        view.run("mount", "--bind", volume, volume)
        view.run("mount", "--make-shared", volume)
        for name in names:
            view.run("mount", "--bind", "/dev/null", volume / name)
        _allow(driver.gpus[1].minor)(bundle)
        bundle.config["linux"]["rootfsPropagation"] = "rshared"
        options = ["rbind", "rshared"]
        bundle.config["mounts"].append(
            {"destination": "/vol", "type": "bind", "source": str(volume), "options": options}
        )
        (bundle.root / "vol").mkdir()

    container = live(change=share)
    view = container.engine.view
    try:
        os.symlink("/vol", f"/proc/{container.pid}/root/dev/dri")
        mounts = view.mounts()

        left = container.eject("1")["left"]

        assert view.mounts() == mounts
        assert [each["why"] for each in left if "renderD" in each["path"]] == [SHARED]
        assert container.opens(1, at="nodes") == ["EPERM"]
    finally:
        container.delete()
        view.run("umount", "--recursive", volume)


def test_the_containers_own_ldconfig_in_between(live):
    """Its cache is kept, without the entries of what is taken away."""
    container = live(change=lambda bundle: bundle.put("/etc/ld.so.cache", SMALL))
    container.inject("1")
    cache = container.bundle.root / "etc/ld.so.cache"
    injected = cache.read_bytes()
    cache.write_bytes(splice(injected, [("libnew.so.1", "/opt/libnew.so.1", 0x303)]))

    container.eject()

    names = [entry.name for entry in ldcache.parse(cache.read_bytes()).entries]
    assert names == ["libold.so.1", "libnew.so.1"]


def test_a_damaged_loader_cache_is_given_back(live):
    container = live(change=lambda bundle: bundle.put("/etc/ld.so.cache", b"damaged"))
    before = container.snapshot()

    container.inject("1")

    assert b"libcuda" in (container.bundle.root / "etc/ld.so.cache").read_bytes()
    container.eject()
    assert container.snapshot() == before


def test_a_failure_takes_everything_back(live):
    """The image has a file where the last of the driver's files needs a directory."""
    container = live(change=lambda bundle: bundle.put("/usr/bin", b"not a directory"))
    before = container.snapshot()

    result = container.nvhook("inject", "--gpus", "1")

    assert result.returncode == 1
    assert result.stderr.startswith("nvhook: ")
    assert len(result.stderr.splitlines()) == 1
    assert container.snapshot() == before
    assert container.journals() == []


def test_an_unknown_gpu(live):
    container = live()

    result = container.nvhook("inject", "--gpus", "7")

    assert result.returncode == 1
    assert "unknown device id 7" in result.stderr
    assert container.journals() == []


def test_list_containers_asks_the_kernel(live, driver):
    """Of a GPU without its node, or without its rule, that is said."""
    container = live()
    container.inject("0,1")
    node = driver.gpus[3].minor
    assert container.probe(("mknod", f"/dev/nvidia{node}", "195", str(node))) == ["OK"]

    command = [driver.launcher, "list", "--containers", "--config", container.bundle.settings]
    listed = json.loads(container.engine.view.run(*command, "--json").stdout)["containers"]
    text = container.engine.view.run(*command).stdout

    found = {each["pid"]: each for each in listed}[container.pid]
    assert container.bundle.name in found["cgroup"]
    assert [(gpu["index"], gpu["node"], gpu["access"]) for gpu in found["gpus"]] == [
        (0, True, True),
        (1, True, True),
        (3, True, False),
    ]
    line = next(line for line in text.splitlines() if line.split()[0] == str(container.pid))
    assert "0, 1, 3 (not allowed)" in line
    container.eject("0,1")
    assert container.probe(("open", f"/dev/nvidia{node}")) == ["EPERM"]


def test_reconcile_gives_back_what_something_else_took(live):
    container = live()
    before = container.snapshot()
    container.inject("1")
    container.take_rules(1)
    assert container.opens(1) == ["EPERM"]

    text = container.reconcile()

    assert f"process {container.pid}: v" in text
    assert container.opens(1, 2, at="nodes") == ["ENXIO", "EPERM"]
    assert container.reconcile() == ""
    container.eject()
    assert container.snapshot() == before


def test_reconcile_finishes_what_was_killed(live):
    container = live()
    before = container.snapshot()
    container.nvhook("inject", "--gpus", "1", env=("NVHOOK_FAULT=50",))

    assert "an inject that was killed is undone" in container.reconcile()

    assert container.snapshot() == before
    assert container.journals() == []


def test_the_journal_of_a_container_that_has_gone(live):
    container = live()
    container.inject("1")
    assert [name.rpartition(".")[2] for name in container.journals()][1:] == ["lock"]
    container.delete()

    assert "its journal is removed" in container.reconcile()

    assert container.journals() == []


def test_what_a_running_process_cannot_be_given_is_said(live, driver):
    container = live()
    node = driver.directory / "dev" / container.node(1)
    before = node.stat()
    os.chown(node, 0, 44)
    node.chmod(0o660)
    try:
        done = container.inject("1")
    finally:
        os.chown(node, before.st_uid, before.st_gid)
        node.chmod(stat.S_IMODE(before.st_mode))

    uuid, pid = driver.gpus[1].uuid, container.pid
    variable, group = done["not_given"]
    assert variable.endswith(f": nsenter -a -t {pid} env NVIDIA_VISIBLE_DEVICES={uuid} COMMAND")
    assert group.startswith("group 44, ")
    assert group.endswith(f": nsenter -a -t {pid} --setgid 44 COMMAND")


def test_eject_names_only_what_was_there(live):
    container = live()
    before = container.snapshot()
    container.inject("1")

    assert container.eject("3")["gpus"] == []
    assert "none of these GPUs" in container.nvhook("eject", "--gpus", "3").stdout
    assert container.opens(1) == ["ENXIO"]
    assert container.eject("1,3")["gpus"] == [container.driver.gpus[1].pci_bus_id]

    container.inject("none")
    done = container.eject()
    assert (done["gpus"], bool(done["undone"])) == ([], True)
    assert container.snapshot() == before
