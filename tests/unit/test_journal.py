"""The journal: what was committed, what is unfinished, and files that are damaged."""

import os
from pathlib import Path

import pytest

from nvhook.errors import FormatError
from nvhook.kernel.root import OldFile
from nvhook.live import journal
from nvhook.live.journal import Journal, Step, Work

NAME = "4026532000-17-99"
STEPS = (
    Step("rules", "bus", "/docker/x", "c 195:0 rw", numbers=(2,)),
    Step("mount", "bus", "/dev/nvidia0", numbers=(6, 7)),
    Step("link", "", "/usr/lib64/libcuda.so", "libcuda.so.1", "old.so"),
    Step("directory", "", "/usr/l\udcffb"),
)


def _open(directory: Path, boot: str = "boot") -> Journal:
    return Journal(str(directory), NAME, boot)


def _names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "containers"))


def test_committed_steps_are_read_back(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ("bus",))
    for step in STEPS:
        first.add(step)
    first.commit(STEPS)
    first.close()

    again = _open(tmp_path)

    assert again.steps == STEPS
    assert (again.work, again.owners) == (None, ("bus",))
    again.close()
    assert journal.names(str(tmp_path)) == (NAME,)


def test_the_old_content_of_a_file_is_kept(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ())
    step = Step("content", "", "/etc/ld.so.cache", "digest", OldFile(b"\0\xff", 0o640, (3, 4)))
    first.add(step)
    first.close()

    again = _open(tmp_path)

    old = again.taken[0].old
    assert isinstance(old, OldFile)
    assert (old.data, old.mode, old.owner) == (b"\0\xff", 0o640, (3, 4))
    again.close()


def test_unfinished_work_is_told_from_what_was_committed(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ("bus",))
    first.commit(STEPS[:1])
    first.begin("inject", ("other",))
    first.add(STEPS[1])
    first.close()

    again = _open(tmp_path)

    assert again.steps == STEPS[:1]
    assert again.work == Work("inject", ("other",), os.getpid())
    assert again.taken == [STEPS[1]]
    again.close()


def test_a_step_that_was_not_written_whole_was_not_taken(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ())
    first.add(STEPS[0])
    first.close()
    path = tmp_path / "containers" / NAME
    path.write_bytes(path.read_bytes() + b'["mount","","/dev/nv')

    again = _open(tmp_path)

    assert again.taken == [STEPS[0]]
    again.close()


def test_nothing_stays_after_the_last_step(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ())
    first.commit(STEPS)
    first.begin("eject", ("bus",))
    first.commit(())
    first.close()

    assert _names(tmp_path) == []


def test_a_journal_of_another_boot_is_about_nothing(tmp_path: Path) -> None:
    first = _open(tmp_path)
    first.begin("inject", ())
    first.commit(STEPS)
    first.close()

    again = _open(tmp_path, "later")

    assert again.steps == ()
    again.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b'{"nvhook":2,"boot":"boot"}\n',
        b'{"nvhook":1,"boot":"boot"}\nnonsense\n',
        b'{"nvhook":1,"boot":"boot"}\n["mount"]\n',
        b'{"nvhook":1,"boot":"boot"}\n{"work":"inject"}\n',
        b'{"nvhook":1,"boot":"boot"}\n["mount","","/","",null,"x"]\n',
        b'{"nvhook":1,"boot":"boot"}\n["mount","","/","",null,[1e999,1]]\n',
        b'{"nvhook":1,"boot":"boot"}\n["mount","","/","",null,[1]]\n',
        b'{"nvhook":1,"boot":"boot"}\n["rules","","/x","c 195:0 rw",null,[]]\n',
        b'{"nvhook":1,"boot":"boot"}\n["rules","","/x","c 195 rw",null,[2]]\n',
        b'{"nvhook":1,"boot":"boot"}\n["other","","/x","",null,[]]\n',
        b'{"nvhook":1,"boot":"boot"}\n["content","","/x","",["",null,0,0],[]]\n',
        b'{"nvhook":1,"boot":"boot"}\n{"work":"else","gpus":[],"writer":1}\n',
    ],
)
def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "containers").mkdir()
    path = tmp_path / "containers" / NAME
    path.write_bytes(data)

    with pytest.raises(FormatError, match=r"damaged.*move it away"):
        _open(tmp_path)

    assert path.read_bytes() == data
    path.unlink()
    _open(tmp_path).close()  # the lock is free


def test_names_are_those_of_journals(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    for name in (NAME, f"{NAME}.lock", f"{NAME}.new", "note", "1-2", "5", "--5"):
        (tmp_path / "containers" / name).touch()

    assert journal.names(str(tmp_path)) == (NAME,)
    journal.forget(str(tmp_path), NAME)
    assert _names(tmp_path) == ["--5", "1-2", "5", "note"]
