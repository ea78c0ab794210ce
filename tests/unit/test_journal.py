"""The journal: what was committed, what is unfinished, and files that are damaged."""

import os
from pathlib import Path

import pytest

from nvhook.errors import FormatError, HostError
from nvhook.kernel.root import OldFile
from nvhook.live import journal
from nvhook.live.journal import Journal, Step, Work

NAME = "17-99"
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
    before = OldFile(b"\0\xff", 0o640, (3, 4))
    step = Step("content", "", "/etc/ld.so.cache", "digest", before, (5, 6))
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
        b'{"nvhook":1,"boot":"boot"}\n["content","","/x","",["",null,0,0],[1,2]]\n',
        b'{"nvhook":1,"boot":"boot"}\n{"work":"else","gpus":[],"writer":1}\n',
    ],
)
def test_a_damaged_journal_is_refused_and_kept(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "containers").mkdir(mode=0o700)
    path = tmp_path / "containers" / NAME
    path.write_bytes(data)

    with pytest.raises(FormatError, match=r"damaged.*move it away"):
        _open(tmp_path)

    assert path.read_bytes() == data
    path.unlink()
    _open(tmp_path).close()  # the lock is free


def test_names_are_those_of_journals(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir(mode=0o700)
    for name in (NAME, f"{NAME}.lock", f"{NAME}.new", "note", "1-2-3", "5", "--5"):
        (tmp_path / "containers" / name).touch()

    assert journal.names(str(tmp_path)) == (NAME,)
    journal.forget(str(tmp_path), NAME)
    assert _names(tmp_path) == ["--5", "1-2-3", "5", "note"]


@pytest.mark.parametrize("umask", [0, 0o77])
def test_the_directory_is_roots_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        _open(tmp_path / "state").close()
    finally:
        os.umask(before)
    assert (tmp_path / "state").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "state/containers").stat().st_mode & 0o7777 == 0o700


def test_a_directory_of_someone_elses_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir(mode=0o777)
    (tmp_path / "containers").chmod(0o777)
    with pytest.raises(HostError, match="is not root's alone"):
        _open(tmp_path)


def test_a_journal_says_whether_it_is_of_this_container(tmp_path: Path) -> None:
    for identity, is_of_this in (("one", True), ("one", True), ("other", False), ("one", True)):
        opened = journal.Journal(str(tmp_path), NAME, "boot", identity)
        assert opened.is_of_this is is_of_this
        if not opened.steps:
            opened.begin("inject", ())
            opened.commit(STEPS)
        opened.close()
