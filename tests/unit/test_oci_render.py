"""A plan in config.json: what the spec says, and what is left to the hook."""

import json
from pathlib import Path

import pytest

from nvhook.core.edits import (
    MOUNTS_IN_SPEC,
    AdditionalGid,
    CachedLibrary,
    CgroupRule,
    DeviceNode,
    EnvVar,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.oci_render import gave_cdi, is_gpu_hook, render
from nvhook.core.planner import rest
from nvhook.errors import FormatError
from nvhook.formats.oci import container_of, parse_document
from nvhook.formats.oci_edit import Additions, add

DATA = Path(__file__).parent.parent / "data/oci"
CONFIGS = sorted(DATA.glob("*/*/config.json"))

NODE = DeviceNode("/dev/nvidia1", "/host/dev/nvidia1", 195, 1, 0o660, 0, 4444)
LIBRARY = Mount("/host/lib/libcuda.so.550", "/usr/lib/libcuda.so.550", required=True)
HIDDEN = Mount("", "/proc/driver/nvidia")
LINK = Symlink("/usr/lib/libcuda.so.1", "libcuda.so.550")
TEXT = TextFile("/proc/driver/nvidia/params", "x")
CACHE = LdCacheUpdate((CachedLibrary("libcuda.so.1", "/usr/lib/libcuda.so.1", 0x303),))
PLAN = Plan(
    (
        NODE,
        CgroupRule("c", 195, 1),
        AdditionalGid(4444),
        EnvVar("A", "b"),
        LIBRARY,
        HIDDEN,
        LINK,
        TEXT,
        CACHE,
    )
)
DEVICE = {
    "path": "/dev/nvidia1",
    "type": "c",
    "major": 195,
    "minor": 1,
    "fileMode": 0o660,
    "uid": 0,
    "gid": 4444,
}
RULE = {"allow": True, "type": "c", "major": 195, "minor": 1, "access": "rw"}
HOOK = {"path": "/opt/bin/nvhook", "args": ["nvhook", "hook", "createRuntime"], "env": ["A=b"]}


def test_devices_rules_variables_and_groups_are_the_specs() -> None:
    assert render(PLAN, user_namespace=False) == Additions(
        ("A=b",), (DEVICE,), (RULE,), (), (4444,)
    )
    assert rest(PLAN, [("/dev/nvidia1", 195, 1)]) == Plan((LIBRARY, HIDDEN, LINK, TEXT, CACHE))


def test_in_a_user_namespace_the_hook_binds_the_node() -> None:
    assert render(PLAN, user_namespace=True) == Additions(("A=b",), (), (RULE,))
    assert rest(PLAN, []).edits[0] == NODE
    assert NODE in rest(PLAN, [("/dev/nvidia1", 195, 2)]).edits  # a node of another device


def test_mounts_in_the_spec_are_those_a_runtime_can_make() -> None:
    binds = render(PLAN, user_namespace=False, mounts=MOUNTS_IN_SPEC).mounts
    assert binds == (
        {
            "destination": "/usr/lib/libcuda.so.550",
            "type": "bind",
            "source": "/host/lib/libcuda.so.550",
            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
        },
    )


@pytest.mark.parametrize(
    ("hook", "ours"),
    [
        ({"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["x", "prestart"]}, True),
        ({"path": "/usr/bin/nvidia-container-toolkit"}, True),
        (HOOK, True),
        ({"path": "/opt/bin/nvhook", "args": ["nvhook", "list"]}, False),
        ({"path": "/opt/bin/nvhook"}, False),
        ({"path": "/proc/1/exe", "args": ["libnetwork-setkey"]}, False),
        ({}, False),
    ],
)
def test_hooks_that_give_gpus_are_known(hook: dict[str, object], ours: bool) -> None:
    assert is_gpu_hook(hook) is ours


def test_what_is_there_is_not_added_again_and_what_differs_is_replaced() -> None:
    other = {**DEVICE, "minor": 7, "fileMode": 0o600}
    document = {
        "process": {"env": ["A=b"], "user": {"additionalGids": [4444]}},
        "linux": {"devices": [other, {"path": "/dev/x"}], "resources": {"devices": [RULE]}},
    }
    text = json.dumps(document)
    changed = add(
        text, document, Additions(("A=b",), (DEVICE, DEVICE), (RULE, RULE), (), (4444, 0))
    )
    document["linux"]["devices"][0] = DEVICE
    assert json.loads(changed) == document
    same = {"linux": {"devices": [{**DEVICE, "fileMode": 0o600}]}}
    assert add(json.dumps(same), same, Additions(devices=(DEVICE,))) == json.dumps(same)


@pytest.mark.parametrize(
    ("there", "wanted", "result"),
    [
        (["A=1", "A=2"], ["A=1"], ["A=1", "A=2", "A=1"]),
        (["A=2", "A=1"], ["A=1"], ["A=2", "A=1"]),
        ([], ["A=1", "A=2", "A=1"], ["A=1"]),
    ],
    ids=["overridden", "in-force", "of-the-additions"],
)
def test_of_two_variables_of_a_name_the_last_one_counts(there, wanted, result) -> None:
    document = {"process": {"env": there}}
    assert json.loads(add(json.dumps(document), document, Additions(tuple(wanted)))) == {
        "process": {"env": result}
    }


def test_a_rule_that_is_denied_again_is_added() -> None:
    deny = {"allow": False, "access": "rwm"}
    document = {"linux": {"resources": {"devices": [RULE, deny]}}}
    text = add(json.dumps(document), document, Additions(rules=(RULE,)))
    again = json.loads(text)
    assert again["linux"]["resources"]["devices"] == [RULE, deny, RULE]
    assert add(text, again, Additions(rules=(RULE,))) == text


def test_a_vendors_hook_is_added_once() -> None:
    hook = {"path": "/opt/vendor", "env": ["A=b"]}
    additions = Additions(hooks=(("createContainer", hook), ("prestart", hook)))
    text = add("{}", {}, additions, is_gpu_hook)
    assert json.loads(text)["hooks"] == {"createContainer": [hook], "prestart": [hook]}
    assert add(text, json.loads(text), additions, is_gpu_hook) == text


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"hooks": "x"}, "hooks is not an object"),
        ({"hooks": {"prestart": ["x"]}}, "hooks.prestart has an entry that is not an object"),
        ({"hooks": {"createRuntime": {}}}, "hooks.createRuntime is not a list"),
        ({"linux": {"resources": []}}, "linux.resources is not an object"),
        ({"linux": {"resources": {"devices": {}}}}, "linux.resources.devices is not a list"),
        ({"process": {"user": 1}}, "process.user is not an object"),
    ],
)
def test_what_no_runtime_would_take_is_a_plain_error(document, says) -> None:
    additions = Additions(rules=(RULE,), gids=(1,), hooks=(("createRuntime", HOOK),))
    with pytest.raises(FormatError, match=says):
        add(json.dumps(document), document, additions, is_gpu_hook)


@pytest.mark.parametrize(
    ("hooks", "gave"),
    [
        ([{**HOOK, "args": ["nvhook", "hook", "createRuntime", "--cdi", "compute"]}], True),
        ([HOOK], False),
        ([{"path": "/usr/bin/nvidia-container-runtime-hook", "args": None}], False),
        (["x"], False),
        (None, False),
    ],
)
def test_a_container_that_an_engine_gave_our_specification_is_known(hooks, gave) -> None:
    assert gave_cdi({"hooks": {"createRuntime": hooks}}) is gave


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_a_real_configuration_keeps_all_it_had(path: Path) -> None:
    """Order, spelling and unknown fields stay, and a second time changes nothing."""
    data = path.read_bytes()
    document = parse_document(data)
    container = container_of(document, "/bundle")
    additions = render(PLAN, container.user_namespace) + Additions(hooks=(("createRuntime", HOOK),))
    text = add(data.decode(), document, additions, is_gpu_hook)
    changed = json.loads(text)
    hooks = changed["hooks"]
    assert hooks["createRuntime"][-1] == HOOK
    assert not any(is_gpu_hook(hook) for hook in hooks.get("prestart") or ())
    assert RULE in changed["linux"]["resources"]["devices"]
    devices = changed["linux"].get("devices") or []
    assert (DEVICE in devices) is not container.user_namespace
    # Taken away again, it is what the engine wrote; whatever of it was there stands where it stood.
    for place, values in (
        (changed["hooks"]["createRuntime"], [HOOK]),
        (changed["linux"]["resources"]["devices"], [RULE]),
        (devices, [DEVICE]),
        (changed["process"]["env"], ["A=b"]),
        (changed["process"]["user"].get("additionalGids") or [], [4444]),
    ):
        for value in values:
            if value in place:
                place.remove(value)
    original = json.loads(data)
    assert _without_empty(changed) == _without_empty(_without_gpu_hooks(original))
    assert list(changed) == [*original, *[key for key in ("hooks",) if key not in original]]
    again = parse_document(text.encode())
    assert add(text, again, additions, is_gpu_hook) == text


def _without_gpu_hooks(document: dict) -> dict:
    hooks = document.get("hooks") or {}
    for stage in ("prestart", "createRuntime"):
        if hooks.get(stage):
            hooks[stage] = [hook for hook in hooks[stage] if not is_gpu_hook(hook)]
    return document


def _without_empty(value):
    """Lists and objects that are only there to hold what was taken away."""
    if isinstance(value, dict):
        cleaned = {key: _without_empty(each) for key, each in value.items()}
        return {key: each for key, each in cleaned.items() if each not in ({}, [], None)}
    return [_without_empty(each) for each in value] if isinstance(value, list) else value
