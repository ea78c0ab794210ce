"""The lines of cgroup v1's devices.list: what they allow."""

import pytest

from nvhook.kernel.cgroup import covers, exact

RULE = ("c", 195, 1, "rw")


@pytest.mark.parametrize(
    ("line", "allows"),
    [
        ("c 195:1 rw", True),
        ("c 195:1 rwm", True),
        ("c 195:* rwm", True),
        ("c *:1 rw", True),
        ("c *:* rwm", True),
        ("c *:* m", False),
        ("c 195:1 r", False),
        ("c 195:* wm", False),
        ("b 195:1 rw", False),
        ("c 195:10 rw", False),
        ("c 195:11 rwm", False),
        ("c 1195:1 rwm", False),
        ("c 195:0 rwm", False),
        ("c 19:1 rwm", False),
        ("", False),
    ],
)
def test_a_line_allows_a_rule(line: str, allows: bool) -> None:
    assert covers(["b *:* m", line, "c 1:3 rwm"], RULE) is allows


def test_no_line_allows_nothing() -> None:
    assert not covers([], RULE)


def test_what_lines_for_just_one_device_allow() -> None:
    listed = ["c 195:* rwm", "c 195:1 r", "c 195:10 rwm", "c 195:1 w"]
    assert exact(listed, RULE) == "rw"
