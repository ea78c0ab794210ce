"""Device programs as bytes: the prologue decides as its rules say, and can be taken out again."""

import struct
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import ContainerError, FormatError, UnsupportedError
from nvhook.kernel import bpf, cgroup, device_rules, programs


def insn(opcode: int, target: int = 0, source: int = 0, offset: int = 0, imm: int = 0) -> bytes:
    return struct.pack("<BBhi", opcode, source << 4 | target, offset, imm)


EXIT = insn(0x95)
DENY = insn(0xB7, imm=0) + EXIT
ALLOW = insn(0xB7, imm=1) + EXIT
# As container runtimes write them: load the request, compare rule by rule, deny at the end.
REQUEST = (
    insn(0x61, 2, 1, 0)
    + insn(0x54, 2, imm=0xFFFF)
    + insn(0x61, 3, 1, 0)
    + insn(0x74, 3, imm=16)
    + insn(0x61, 4, 1, 4)
    + insn(0x61, 5, 1, 8)
)
NULL_RW = (
    insn(0x55, 2, offset=7, imm=2)
    + insn(0xBC, 1, 3)
    + insn(0x54, 1, imm=6)
    + insn(0x5D, 1, 3, offset=4)
    + insn(0x55, 4, offset=3, imm=1)
    + insn(0x55, 5, offset=2, imm=3)
    + ALLOW
)
RUNTIME = REQUEST + NULL_RW + DENY

rules_of = st.lists(
    st.tuples(
        st.sampled_from("bc"),
        st.sampled_from([0, 1, 195, 234, device_rules.MAX_MAJOR]),
        st.sampled_from([0, 1, 2, 255, device_rules.MAX_MINOR]),
        st.sampled_from(["r", "w", "m", "rw", "rm", "wm", "rwm"]),
    ),
    max_size=30,
)
questions = st.tuples(
    st.sampled_from("bc"),
    st.sampled_from(["r", "w", "m", "rw", "rwm"]),
    st.sampled_from([0, 1, 2, 195, 234, device_rules.MAX_MAJOR]),
    st.sampled_from([0, 1, 2, 3, 255, device_rules.MAX_MINOR]),
)


@given(rules_of, questions)
def test_a_patched_program_allows_the_rules_and_else_asks_the_original(rules, question):
    kind, access, major, minor = question
    allowed = {letter for rule in rules if rule[:3] == (kind, major, minor) for letter in rule[3]}
    for original in (DENY, ALLOW, RUNTIME):
        patched = bpf.prologue(rules) + original
        expected = set(access) <= allowed or bpf.emulate(original, *question)
        assert bpf.emulate(patched, *question) == expected


@pytest.mark.parametrize("original", [DENY, ALLOW, RUNTIME], ids=["deny", "allow", "runtime"])
def test_every_question_near_the_rules(original):
    rules = [("c", 195, 1, "r"), ("c", 195, 2, "w"), ("c", 234, 0, "rm"), ("b", 195, 1, "rw")]
    patched = bpf.prologue(rules) + original
    for kind, major, minor in product("bc", (195, 234), (0, 1, 2, 3)):
        for access in ("r", "w", "m", "rw", "rm", "wm", "rwm"):
            expected = bpf.covered((kind, major, minor, access), tuple(rules)) or bpf.emulate(
                original, kind, access, major, minor
            )
            assert bpf.emulate(patched, kind, access, major, minor) == expected


@given(rules_of)
def test_rules_and_original_come_back(rules):
    patched = bpf.prologue(rules) + RUNTIME
    assert bpf.split(patched) == (device_rules.canonical(rules), RUNTIME)


@given(rules_of)
def test_no_jump_goes_nowhere(rules):
    """The kernel takes a jump to the next instruction out, and the mark would not fit any more."""
    for opcode, _, offset, _ in bpf.decode(bpf.prologue(rules)):
        assert opcode not in {bpf.JUMP, bpf.JNE, bpf.JNE_REG} or offset > 0


def test_canonical_joins_rules_of_one_device():
    rules = [("c", 195, 1, "w"), ("b", 8, 0, "r"), ("c", 195, 1, "rm"), ("c", 195, 0, "r")]
    assert device_rules.canonical(rules) == (
        ("b", 8, 0, "r"),
        ("c", 195, 0, "r"),
        ("c", 195, 1, "rwm"),
    )


@pytest.mark.parametrize(
    "rule",
    [
        ("a", 195, 0, "rw"),
        ("c", -1, 0, "rw"),
        ("c", 4096, 0, "rw"),
        ("c", 195, 1 << 20, "rw"),
        ("c", 195, 0, "rx"),
    ],
)
def test_a_rule_no_device_matches_is_refused(rule):
    with pytest.raises(UnsupportedError, match="not a device rule"):
        bpf.prologue([rule])


def test_a_denial_goes_before_what_the_program_allows():
    rules = (("c", 195, 0, "rw"), ("c", 195, 1, ""), ("c", 195, 2, "rw"))
    original = struct.pack("<BBhi", bpf.MOV, 0, 0, 1) + struct.pack("<BBhi", bpf.EXIT, 0, 0, 0)

    patched = bpf.prologue(rules) + original

    assert bpf.split(patched) == (rules, original)
    for minor, access, answer in (
        (0, "rw", True),
        (1, "rw", False),
        (1, "m", False),
        (3, "r", True),
    ):
        assert bpf.emulate(patched, "c", access, 195, minor) is answer


def test_an_empty_access_is_no_rule_to_allow():
    with pytest.raises(UnsupportedError, match="not a device rule"):
        device_rules.canonical([("c", 195, 0, "")])
    both = [("c", 195, 0, ""), ("c", 195, 0, "r")]
    assert device_rules.canonical(both, denials=True) == (("c", 195, 0, "r"),)


def test_too_many_rules_are_refused():
    bpf.prologue([("c", 234, minor, "rw") for minor in range(5000)])
    with pytest.raises(UnsupportedError, match="too many"):
        bpf.prologue([("c", 234, minor, "rw") for minor in range(6000)])


def test_a_program_without_the_mark_is_all_original():
    assert bpf.split(RUNTIME) == (None, RUNTIME)
    assert bpf.split(DENY) == (None, DENY)


@pytest.mark.parametrize("place", range(2, 2 + bpf.HEAD + bpf.BLOCK))
def test_a_mark_followed_by_something_else_is_an_error(place):
    patched = bytearray(bpf.prologue([("c", 195, 1, "rw")]) + RUNTIME)
    patched[place * 8 + 3] ^= 0x40
    with pytest.raises(FormatError, match="mark"):
        bpf.split(bytes(patched))


def test_a_mark_with_nothing_behind_it_is_an_error():
    with pytest.raises(FormatError, match="mark"):
        bpf.split(bpf.prologue([("c", 195, 1, "rw")]))


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data):
    marked = bpf.prologue([("c", 195, 1, "rw")])[:16] + data
    for insns in (data, marked):
        with suppress(FormatError):
            assert bpf.split(insns) == (None, insns)
        with suppress(FormatError, UnsupportedError):
            bpf.emulate(insns, "c", "rw", 195, 1)


def test_a_program_as_runtimes_write_it():
    assert bpf.emulate(RUNTIME, "c", "rw", 1, 3)
    assert bpf.emulate(RUNTIME, "c", "r", 1, 3)
    assert not bpf.emulate(RUNTIME, "c", "rwm", 1, 3)
    assert not bpf.emulate(RUNTIME, "c", "r", 1, 5)
    assert not bpf.emulate(RUNTIME, "b", "r", 1, 3)


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        (insn(0xB4, 0, imm=-1), True),
        (insn(0xB7, 0, imm=-1) + insn(0x04, 0, imm=1), False),  # 32 bits wrap to 0
        (insn(0xB7, 0, imm=-1) + insn(0x07, 0, imm=1), False),  # 64 bits too
        (insn(0xB7, 0, imm=-1) + insn(0x77, 0, imm=63) + insn(0x17, 0, imm=1), False),
        (insn(0xB7, 0, imm=-8) + insn(0xC7, 0, imm=3) + insn(0x07, 0, imm=1), False),
        (insn(0xB7, 0, imm=5) + insn(0x37, 0, imm=0), False),  # division by 0 gives 0
        (insn(0xB7, 0, imm=5) + insn(0x97, 0, imm=0), True),  # and the rest is the dividend
        (insn(0xB7, 0, imm=1) + insn(0x87, 0) + insn(0x07, 0, imm=1), False),
        (insn(0xB7, 0, imm=6) + insn(0xA7, 0, imm=6), False),
        (insn(0xB7, 0, imm=-1) + insn(0x65, 0, offset=1, imm=0) + insn(0xB7, 0, imm=0), False),
        (insn(0xB7, 0, imm=-1) + insn(0x25, 0, offset=1, imm=0) + insn(0xB7, 0, imm=0), True),
        (insn(0xB7, 0, imm=4) + insn(0x45, 0, offset=1, imm=6) + insn(0xB7, 0, imm=0), True),
        (insn(0xB7, 0, imm=1) + insn(0x05, offset=1) + insn(0xB7, 0, imm=0), True),
        (insn(0x71, 0, 1, 4), True),  # lowest byte of the major number
        (insn(0x69, 0, 1, 6), False),
    ],
)
def test_arithmetic_and_jumps(code, answer):
    assert bpf.emulate(code + EXIT, "c", "rw", 195, 1) == answer


@pytest.mark.parametrize(
    "code",
    [
        insn(0x85, imm=5) + EXIT,  # a helper call
        insn(0x18, 2, 1) + insn(0) + ALLOW,  # a map
        insn(0x62, 10, 0, -4) + ALLOW,  # the stack
        insn(0x61, 0, 1, 12) + EXIT,  # behind the request
        insn(0x61, 0, 2, 0) + EXIT,
        insn(0xB7),  # no exit
        insn(0x05, offset=-1),  # no end
    ],
)
def test_what_is_not_understood_is_refused(code):
    with pytest.raises(UnsupportedError):
        bpf.emulate(code, "c", "rw", 195, 1)


def test_blinded_constants_are_seen():
    assert bpf.blinded(insn(0xB7, 11, imm=12345) + RUNTIME)
    assert bpf.blinded(insn(0xBF, 2, 11) + RUNTIME)
    assert not bpf.blinded(bpf.prologue([("c", 195, 1, "rw")]) + RUNTIME)


def test_check_passes_an_honest_patch():
    rules = (("c", 195, 1, "rw"),)
    programs.check(RUNTIME, bpf.prologue(rules) + RUNTIME, rules, rules)


@pytest.mark.parametrize(
    ("new", "error"),
    [(RUNTIME, "would not allow"), (ALLOW, "would change"), (NULL_RW + ALLOW, "would change")],
)
def test_check_refuses_a_wrong_patch(new, error):
    rules = (("c", 195, 1, "rw"),)
    with pytest.raises(UnsupportedError, match=error):
        programs.check(RUNTIME, new, rules, rules)


def test_check_refuses_a_patch_that_takes_something_away():
    rules = (("c", 195, 1, "rw"),)
    with pytest.raises(UnsupportedError, match="would change"):
        programs.check(RUNTIME, bpf.prologue(rules) + DENY, rules, rules)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("5:devices:/docker/a\n0::/docker/b\n", ("/docker/a", "/docker/b")),
        ("3:cpu,devices:/x\n1:name=systemd:/y\n", ("/x", "")),
        ("0::/a:b\n", ("", "/a:b")),
        ("4:memory:/m\n", ("", "")),
    ],
)
def test_where_a_process_belongs(tmp_path, text, found):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    assert cgroup.memberships(str(tmp_path), 7) == found


@pytest.mark.parametrize("path", ["/..", "/../x", "/a/../../b"])
def test_a_cgroup_outside_the_namespace_is_an_error(tmp_path, path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"0::{path}\n")
    with pytest.raises(ContainerError, match=r"outside.*host's cgroup namespace"):
        cgroup.memberships(str(tmp_path), 7)


@pytest.mark.parametrize("text", ["nonsense\n", "5:devices\n", "0::relative\n"])
def test_a_broken_cgroup_file_is_an_error(tmp_path, text):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(text)
    with pytest.raises(FormatError, match="not understood"):
        cgroup.memberships(str(tmp_path), 7)
