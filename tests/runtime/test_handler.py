"""nvhook-runtime: the container gets what it asks for, and nobody sees a difference otherwise."""

import json
import os

import pytest

from tests.runtime.bundle import SEARCH_PATH
from tests.runtime.expectations import (
    ALLOWED,
    COMPUTE,
    DENIED,
    ask_everything,
    assert_reaches,
    uuids,
)

ALL_GPUS = (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [("1", (1,)), ("{uuid}", (1,)), ("0,2", (0, 2)), ("all", ALL_GPUS), ("none", ())],
    ids=["index", "uuid", "two-of-four", "all", "none"],
)
def test_exactly_what_is_asked_for_can_be_opened(each_handler, bundles, driver, asked, gpus):
    bundle = bundles(each_handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=" + asked.format(uuid=driver.gpus[1].uuid))
    ask_everything(bundle)

    result = each_handler.start(bundle)

    assert_reaches(bundle, result, gpus, COMPUTE)
    assert 'msg="device rules"' not in result.log, "the runtime sets the rules, not the hook"


@pytest.mark.parametrize("readonly", [False, True], ids=["rw", "ro"])
@pytest.mark.parametrize("owned", [True, False], ids=["own-image", "host-owned-image"])
def test_a_user_namespace(each_handler, bundles, owned, readonly):
    bundle = bundles(each_handler)
    bundle.config["root"]["readonly"] = readonly
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)
    bundle.use_user_namespace(owned)

    assert_reaches(bundle, each_handler.start(bundle), (1,), COMPUTE)


def test_the_libraries_are_found_through_the_loader_cache(each_handler, bundles, debian):
    bundle = bundles(each_handler, debian)
    bundle.config["root"]["readonly"] = True
    bundle.ask("NVIDIA_VISIBLE_DEVICES=3,1")
    bundle.args("/bin/sh", "-c", "nvidia-smi -L; /sbin/ldconfig -p | grep -c 'libcuda.so'")

    result = each_handler.start(bundle)

    listed = [line for line in result.stdout.splitlines() if line.startswith("GPU ")]
    assert [line.rpartition("UUID: ")[2].rstrip(")") for line in listed] == uuids(bundle, (1, 3))
    assert result.stdout.splitlines()[-1] == "2"  # libcuda.so and libcuda.so.1


@pytest.mark.parametrize(
    "variables",
    [(), ("NVIDIA_VISIBLE_DEVICES=",), ("NVIDIA_VISIBLE_DEVICES=void",), ("CUDA_VERSIONS=1",)],
    ids=["unset", "empty", "void", "looks-like"],
)
def test_a_container_that_does_not_ask_keeps_its_configuration(each_handler, bundles, variables):
    bundle = bundles(each_handler)
    bundle.ask(*variables)
    ask_everything(bundle)
    bundle.config["unknown"] = {"field": 1.5, "ä": None}

    result = each_handler.start(bundle)

    assert_reaches(bundle, result, (), ())
    assert (bundle.directory / "config.json").read_text() == json.dumps(bundle.config)


def test_an_unknown_device_stops_the_container(each_handler, bundles):
    bundle = bundles(each_handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=0,7")

    error = each_handler.fail(bundle)

    assert "unknown device id 7" in error
    assert (bundle.directory / "config.json").read_text() == json.dumps(bundle.config)


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ((), '"level":"error","msg":"nvhook: unknown device id 7'),
        (("--log-format", "json"), '"level":"error","msg":"nvhook: unknown device id 7'),
        (("--log-format=text",), 'level=error msg="nvhook: unknown device id 7'),
    ],
    ids=["default", "json", "text"],
)
def test_the_engine_finds_the_error_in_the_runtimes_log(handler, bundles, form, line):
    """containerd shows its user the last error of that file, not standard error."""
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=7")
    bundle.write()
    log = bundle.directory / "log"

    done = handler.call(bundle, "--log", log, *form, "create", "--bundle", bundle.directory, "c")

    assert done.returncode == 1
    assert done.stderr.startswith("nvhook: unknown device id 7 (hint: ")
    if form == ():
        line = 'level=error msg="nvhook: unknown device id 7'  # runc's default is text
    assert line in log.read_text()


@pytest.mark.parametrize("log", ["/dev/full", "fifo", "syslog:c", "journald:c", "file:log"])
def test_a_log_of_the_runtimes_that_is_no_plain_file(handler, bundles, log):
    """crun's kinds of --log; and what can't be written must not hide the error."""
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=7")
    bundle.write()
    os.mkfifo(bundle.directory / "fifo")
    words = ["--log", log, "create", "--bundle", str(bundle.directory), "c"]
    before = {path.name for path in bundle.directory.iterdir()}

    done = handler.view.run(
        "timeout", "20", "env", "-C", bundle.directory, *handler.prefix(bundle), *words, check=False
    )

    assert done.returncode == 1
    assert done.stderr.startswith("nvhook: unknown device id 7 (hint: ")
    assert done.stderr.count("\n") == 1
    made = {path.name for path in bundle.directory.iterdir()} - before - {bundle.log.name}
    assert made == ({"log"} if log == "file:log" else set())


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ({"env": "nvidia.com/gpu=1"}, (1,)),
        ({"env": "runtime.nvidia.com/gpu=all"}, ALL_GPUS),
        ({"annotation": "nvidia.com/gpu=2,nvidia.com/gpu=3"}, (2, 3)),
        ({"env": "all", "annotation": "k8s.device-plugin.nvidia.com/gpu={uuid}"}, (1,)),
        ({"mount": "{uuid}"}, (1,)),
        ({"mount": "cdi/nvidia.com/gpu/0"}, (0,)),
    ],
    ids=["cdi-name", "cdi-all", "annotation", "annotation-first", "mount", "cdi-mount"],
)
def test_every_way_of_asking(handler, bundles, driver, asked, gpus):
    bundle = bundles(handler)
    uuid = driver.gpus[1].uuid
    driver.configuration(bundle.settings, bundle.log, accept_volume_mounts="true")
    if "env" in asked:
        bundle.ask(f"NVIDIA_VISIBLE_DEVICES={asked['env']}")
    if "annotation" in asked:
        name = "cdi.k8s.io/nvidia-device-plugin_0"
        bundle.config["annotations"] = {name: asked["annotation"].format(uuid=uuid)}
    if "mount" in asked:
        target = "/var/run/nvidia-container-devices/" + asked["mount"].format(uuid=uuid)
        mount = {"destination": target, "source": "/dev/null", "options": ["bind"]}
        bundle.config["mounts"].append(mount)
    ask_everything(bundle)

    assert_reaches(bundle, handler.start(bundle), gpus, COMPUTE)


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_a_hook_that_would_do_it_again_is_taken_out(handler, bundles, stage):
    """docker --runtime=nvidia --gpus: the engine has added NVIDIA's hook."""
    bundle = bundles(handler)
    witness = bundle.shell_hook("echo ran >>" + str(bundle.directory / "ran"))
    theirs = {
        "path": "/usr/bin/nvidia-container-runtime-hook",
        "args": ["nvidia-container-runtime-hook", "prestart"],
        "env": [SEARCH_PATH],
    }
    bundle.config["hooks"] = {stage: [theirs, witness, bundle.hook(stage)]}
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle)

    assert_reaches(bundle, handler.start(bundle), (1,), COMPUTE)

    assert (bundle.directory / "ran").read_text() == "ran\n"
    hooks = json.loads((bundle.directory / "config.json").read_text())["hooks"]
    assert [len(hooks[name]) for name in hooks] == ([2] if stage == "createRuntime" else [1, 1])


def test_a_bundle_is_edited_once_however_often_it_is_started(handler, bundles):
    """podman start, docker restart with some engines: the same config.json again."""
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    ask_everything(bundle, mknod=False)
    handler.start(bundle)
    first = (bundle.directory / "config.json").read_text()

    again = handler.call(bundle, "run", "-b", bundle.directory, bundle.name)

    assert again.returncode == 0, again.stderr
    assert (bundle.directory / "config.json").read_text() == first


def test_the_file_keeps_its_mode_and_owner_and_nothing_is_left_beside_it(handler, bundles):
    bundle = bundles(handler)
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe")
    bundle.config.pop("hooks")
    bundle.write()
    document = bundle.directory / "config.json"
    document.chmod(0o640)
    before = sorted(path.name for path in bundle.directory.iterdir())

    assert handler.call(bundle, "run", "-b", bundle.directory, bundle.name).returncode == 0

    assert document.stat().st_mode & 0o7777 == 0o640
    after = sorted(path.name for path in bundle.directory.iterdir() if path != bundle.log)
    assert after == before
    assert "createRuntime" in document.read_text()


def test_a_privileged_container_keeps_the_devices_it_has(handler, bundles, driver):
    """The engine lists all of the host's nodes: one of ours is not listed a second time."""
    bundle = bundles(handler)
    minor = driver.gpus[1].minor
    theirs = {"path": f"/dev/nvidia{minor}", "type": "c", "major": 195, "minor": minor}
    wrong = {"path": "/dev/nvidiactl", "type": "c", "major": 1, "minor": 3}
    bundle.config["linux"]["devices"] = [theirs, wrong]
    bundle.config["linux"]["resources"]["devices"] = [{"allow": True, "access": "rwm"}]
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "open", f"/dev/nvidia{minor}", "open", "/dev/nvidiactl")

    answers = handler.start(bundle).answers

    assert set(answers.values()) == {ALLOWED}
    devices = json.loads((bundle.directory / "config.json").read_text())["linux"]["devices"]
    assert devices[0] == theirs
    assert devices[1]["minor"] == 255
    assert len([device for device in devices if device["path"].startswith("/dev/nvidia")]) == 4


def test_a_node_that_only_a_group_may_open(handler, bundles, driver):
    """The container's user gets the group, and the node the mode it has on the host."""
    bundle = bundles(handler)
    minor = driver.gpus[1].minor
    node = driver.directory / f"dev/nvidia{minor}"
    before = node.stat()
    bundle.config["process"]["user"] = {"uid": 1000, "gid": 1000}
    bundle.config["process"].pop("capabilities")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/probe", "open", f"/dev/nvidia{minor}")
    try:
        node.chmod(0o660)
        os.chown(node, 0, 27)
        answers = handler.start(bundle).answers
        made = json.loads((bundle.directory / "config.json").read_text())
        made["process"]["user"].pop("additionalGids")
        bundle.config = made
        without = handler.real.start(bundle).answers
    finally:
        os.chown(node, before.st_uid, before.st_gid)
        node.chmod(before.st_mode & 0o7777)
        os.utime(node, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert answers == {f"open /dev/nvidia{minor}": ALLOWED}
    assert without == {f"open /dev/nvidia{minor}": "EACCES"}


def test_an_update_of_the_container_keeps_the_gpu(each_handler, bundles, driver):
    """The rules are the runtime's own: it sets them again."""
    bundle = bundles(each_handler)
    bundle.config.pop("hooks")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    bundle.args("/bin/sleep", "60")
    given, other = driver.gpus[1].minor, driver.gpus[0].minor
    resources = bundle.directory / "resources.json"
    resources.write_text("{}")
    each_handler.start_detached(bundle)
    try:
        # The cgroup2 of a hybrid host has no controllers: there only what changes nothing.
        v2 = each_handler.view.name == "v2"
        change = ["--resources", resources] if v2 else ["--pids-limit", "100"]
        updated = each_handler.call(bundle, "update", *change, bundle.name)
        asked = [f"/dev/nvidia{given}", f"/nodes/nvidia{other}"]
        words = [word for path in asked for word in ("open", path)]
        seen = each_handler.call(bundle, "exec", bundle.name, "/probe", *words)
    finally:
        each_handler.call(bundle, "delete", "-f", bundle.name)
    assert updated.returncode == 0, updated.stderr
    assert seen.stdout.splitlines() == [
        f"open /dev/nvidia{given} = {ALLOWED}",
        f"open /nodes/nvidia{other} = {DENIED}",
    ]
