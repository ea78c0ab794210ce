"""JSON: the same values as the json module, and only FormatError for what is not JSON."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.errors import FormatError
from nvhook.formats import json_text

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES, st.booleans())
def test_reads_what_json_writes(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=1)
    assert json_text.parse(text.encode(), "text") == value


@given(st.binary(max_size=200))
def test_any_bytes_raise_only_format_errors(data: bytes) -> None:
    try:
        expected = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        with pytest.raises(FormatError, match=r"^state is "):
            json_text.parse(data, "state")
    else:
        try:
            assert json_text.parse(data, "state") == expected
        except FormatError as error:
            if "duplicate" not in error.message and "not a number" not in error.message:
                raise


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "state is empty"),
        (b" \n\t", "state is empty"),
        (b'{"pid": 4,', "state is not JSON: it ends too early, after 10 characters"),
        (b'{"a": "b', "state is not JSON: unterminated string starting at character 6"),
        (b"nul", "state is not JSON: expecting value at character 0"),
        (b"[1, x]", "state is not JSON: expecting value at character 4"),
        (b'{"a" 1}', "state is not JSON: expecting ':' delimiter at character 5"),
        (b"{} {}", "state is not JSON: extra data at character 3"),
        (b"{}\0", "state is not JSON: extra data at character 2"),
        (b"[NaN]", "state is not JSON: NaN is not a number"),
        (b"[-Infinity]", "state is not JSON: -Infinity is not a number"),
        (b'{"a": {"b": 1, "b": 2}}', "state is not JSON: duplicate key 'b'"),
        (b"[" * 100_000, "state is not JSON: nested too deeply"),
        (b'{"a":' * 100_000, "state is not JSON: nested too deeply"),
        (b'"a\xffb"', "state is not UTF-8: bad byte at offset 2"),
        (b'"\xed\xa0\x80"', "state is not UTF-8: bad byte at offset 1"),
        (b"\xef\xbb\xbf{}", "state is not JSON: expecting value at character 0"),
        (b"1" * 5000, "state is not JSON: a number has too many digits"),
    ],
)
def test_says_what_is_wrong_and_where(data: bytes, message: str) -> None:
    with pytest.raises(FormatError) as caught:
        json_text.parse(data, "state")
    assert str(caught.value) == message


def test_refuses_more_than_the_limit() -> None:
    assert json_text.parse(b"[1,2]", "state", limit=5) == [1, 2]
    with pytest.raises(FormatError, match="state is larger than 4 bytes"):
        json_text.parse(b"[1,2]", "state", limit=4)


def test_half_a_surrogate_pair_is_replaced() -> None:
    """A lone surrogate would blow up later, in the first path or log line made of it."""
    value = json_text.parse(rb'{"\ud800a": ["x\udfff", "\ud83d\ude00"]}', "state")
    assert value == {"\ufffda": ["x\ufffd", "\U0001f600"]}


def test_success_and_failure_in_a_bare_interpreter() -> None:
    """Before CPython 3.12 the C scanner needs the json module to report an error."""
    script = """
import sys
sys.path.insert(0, sys.argv[1])
from nvhook.errors import FormatError
from nvhook.formats import json_text
assert json_text.parse(b'{"a": [1, 2.5, "b"]}', "state") == {"a": [1, 2.5, "b"]}
assert "json" not in sys.modules and "re" not in sys.modules
try:
    json_text.parse(b'{"a" 1}', "state")
except FormatError as error:
    print(error)
"""
    import nvhook

    root = nvhook.__file__.rpartition("/nvhook/")[0]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, root],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (
        "state is not JSON: expecting ':' delimiter at character 5\n",
        "",
    )
