"""Plans of features: their nodes, rules and files, or an error that says what to do."""

import pytest

from nvhook.core.edits import CgroupRule, DeviceNode, Mount, Plan
from nvhook.core.features import GDS, IMEX, channel_plans, feature_plan
from nvhook.core.inventory import HostFile, HostNode
from nvhook.errors import HostError, RequestError


def node(name: str, minor: int) -> HostNode:
    return HostNode(name, f"/d/{name}", 500, minor, 0o666, 0, 0)


def channel(number: int) -> HostNode:
    return node(f"nvidia-caps-imex-channels/channel{number}", number)


def test_a_feature_is_its_nodes_with_rules_and_its_files() -> None:
    file = HostFile("gds", "/etc/cufile.json", "/etc/cufile.json", "/r/etc/cufile.json")
    assert feature_plan(GDS, (node("nvidia-fs0", 7),), (file,), "/d") == Plan(
        (
            DeviceNode("/dev/nvidia-fs0", "/d/nvidia-fs0", 500, 7),
            CgroupRule("c", 500, 7),
            Mount("/r/etc/cufile.json", "/etc/cufile.json"),
        )
    )


def test_a_feature_without_a_node_says_what_was_looked_for_and_what_to_do() -> None:
    with pytest.raises(HostError) as caught:
        feature_plan(GDS, (), (), "/d")
    assert str(caught.value) == (
        "this host has no gds: there is no /d/nvidia-fs* (hint: install GPUDirect Storage and run "
        "'modprobe nvidia-fs')"
    )


NODES = (channel(0), channel(2), channel(10), node("nvidia-caps-imex-channels/channelx", 3))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(("all",), [0, 2, 10]), (("10", "2"), [2, 10]), (("2", "02"), [2]), (("0",), [0])],
)
def test_channels_in_order_each_once(asked: tuple[str, ...], expected: list[int]) -> None:
    plans = channel_plans(asked, NODES, "/d")
    assert list(plans) == expected
    for number, plan in plans.items():
        name = f"nvidia-caps-imex-channels/channel{number}"
        rule = CgroupRule("c", 500, number)
        assert plan == Plan((DeviceNode(f"/dev/{name}", f"/d/{name}", 500, number), rule))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("1", "IMEX channel 1 does not exist (hint: this host has 0, 2, 10;"),
        ("x", "'x' is no IMEX channel (hint: use all, or 0 to 1048575)"),
        ("-1", "'-1' is no IMEX channel"),
        ("1048576", "'1048576' is no IMEX channel"),
        ("9" * 40, "is no IMEX channel"),
        ("\u0662", "is no IMEX channel"),
    ],
)
def test_a_channel_that_is_not_there(asked: str, reason: str) -> None:
    with pytest.raises(RequestError) as caught:
        channel_plans((asked,), NODES, "/d")
    assert reason in str(caught.value)


def test_no_channel_at_all() -> None:
    with pytest.raises(HostError, match=f"this host has no {IMEX.name}"):
        channel_plans(("all",), (), "/d")
