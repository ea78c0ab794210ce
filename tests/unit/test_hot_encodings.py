"""The home that a hot door's interpreter starts with: nothing but its start may be different."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nvhook import hot_archive
from tests.installed import PACKED, SITE

PYTHON = Path(sys.executable).resolve()

# What a door could come to need, told as JSON.
DOOR = """
def main(arguments):
    import sys, posix
    early = sorted(name for name in ("codecs", "encodings", "io") if name in sys.modules)
    import codecs, encodings, encodings.aliases, encodings.idna, importlib.metadata, io, json
    import locale, os, subprocess
    with open(arguments[1], "wb") as file:
        file.write(b"\\xc3\\xa4")
    decoded = []
    for encoding in ("utf-8", "UTF8", "latin-1", "cp1252", "utf-16-le"):
        with open(arguments[1], encoding=encoding) as file:
            decoded.append(file.read())
    class_ = codecs.lookup("utf-8").__class__.__module__
    with codecs.open(arguments[1], encoding="utf-8") as file:
        decoded.append(file.read())
    try:
        "x".encode("nonsense")
    except LookupError as error:
        unknown = str(error)
    print(json.dumps({
        "early": early,
        "files": [encodings.__file__, subprocess.__file__],
        "frozen": [each.__spec__.origin for each in (codecs, io, os)],
        "path": [each for each in sys.path if not each.endswith(".zip")],
        "prefix": [sys.prefix, sys.exec_prefix, sys.base_prefix],
        "environment": sorted({*os.environ, *map(os.fsdecode, posix.environ)} - {"LC_CTYPE"}),
        "children": subprocess.run(["env"], capture_output=True, text=True).stdout.count("PYTHON"),
        "decoded": decoded,
        "codec": class_,
        "idna": "b\\xfc.de".encode("idna").decode(),
        "unknown": unknown,
        "streams": [isinstance(each, io.TextIOBase) for each in (sys.stdin, sys.stdout)],
        "locale": locale.getpreferredencoding(),
    }))
"""


# In pieces that end amid a character, and back again.
ECHO = """
import sys
pieces = []
while piece := sys.stdin.read(1000):
    pieces.append((piece, sys.stdin.tell()))
sys.stdin.seek(pieces[len(pieces) // 2][1] if pieces else 0)
again = sys.stdin.read()
for file in (sys.stdout, sys.stderr):
    print(again, *pieces, sep="|", file=file)
    print("".join(piece for piece, _ in pieces), file=file)
"""


@pytest.fixture(autouse=True)
def needs_a_home(require) -> None:
    require((PACKED / "encodings.pyc").stat().st_size > 0, "this Python needs more for its start")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of the home whose hook is DOOR."""
    directory = tmp_path / "home" / PACKED.parent.name / PACKED.name
    shutil.copytree(PACKED, directory)
    package = compile("", "nvhook", "exec")
    modules = [("nvhook", True, package), ("nvhook.hook", False, compile(DOOR, "door", "exec"))]
    (directory / "hook.modules").write_bytes(hot_archive._pack(modules))
    return tmp_path / "home"


def start(home: Path | None, *arguments: str, stdin: bytes = b"") -> bytes:
    """Run the interpreter as the launcher does, with a home or without."""
    first = ["-S"] if home else ["-I", "-S"]
    environment = {"PYTHONHOME": f"{home}:{PYTHON.parent.parent}"} if home else {}
    command = [PYTHON, *first, "-X", "utf8", *arguments]
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        done = subprocess.run(
            command,
            env={"LC_ALL": "C", **environment},
            stdin=file,
            capture_output=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout + done.stderr


def test_after_its_start_everything_is_pythons_own(home, tmp_path) -> None:
    site, file = str(SITE), str(tmp_path / "file")
    script = home / PACKED.parent.name / PACKED.name / "start.pyc"
    found = json.loads(start(home, str(script), site, "hook", file))
    plain = f"import sys; sys.path.append({site!r})\n{DOOR}\nmain(['', {file!r}])"
    expected = json.loads(start(None, "-c", plain))

    assert found.pop("early") == []
    assert expected.pop("early") == ["codecs", "encodings", "io"]
    assert found == expected
    assert found["decoded"] == ["ä", "ä", "Ã¤", "Ã¤", "\ua4c3", "ä"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"plain\n",
        "ä€😀".encode(),
        b"x" * 8191 + "ä€".encode() * 9000,
        b"bad \xff\xe4",
        b"\xe2\x82",
    ],
    ids=["nothing", "ascii", "unicode", "across-reads", "invalid", "incomplete"],
)
def test_its_streams_read_and_write_as_any(home, text) -> None:
    script = home / "echo.pyc"
    script.write_bytes(hot_archive._pyc(compile(ECHO, "echo", "exec")))
    assert start(home, str(script), stdin=text) == start(None, str(script), stdin=text)


def test_what_does_not_start_is_not_packed() -> None:
    assert hot_archive._starts_with((PACKED / "encodings.pyc").read_bytes())
    assert not hot_archive._starts_with(b"")
    assert not hot_archive._starts_with((PACKED / "start.pyc").read_bytes())
