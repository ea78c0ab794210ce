"""Recordings are bounded, root's alone, and of one host state each."""

import os
from pathlib import Path

import pytest

from nvhook import observations, state
from nvhook.config import Config
from nvhook.create import recording
from nvhook.create.loader_cache import Merge
from nvhook.create.recording import Recording
from nvhook.doctor import own_checks
from nvhook.doctor.facts import HostFacts
from nvhook.log import Log

CONFIG = b'{"process":{"env":["NVIDIA_VISIBLE_DEVICES=%d"]},"root":{"path":"rootfs"}}'
LOG = Log("")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(state, "DIRECTORY", str(tmp_path / "run"))
    return tmp_path / "run/recordings"


def keep(number: int = 0, host: str = "1", root: str = "1", made: bytes = b"") -> None:
    """Leave a recording of a request, made on a host and for a root in some state."""
    kept = Recording()
    observations.of_host("text", "/proc/devices", "9", answer=host)
    observations.of_root("has", "/etc/debian_version", answer=root)
    if made:
        kept.merge(Merge("/etc/ld.so.cache", [number], b"", made))
    kept.keep(["hook", "prestart"], CONFIG % number, LOG)


def names(directory: Path, kind: str = "") -> list[str]:
    return sorted(each.name for each in directory.iterdir() if each.name.startswith(kind))


def test_a_recording_is_roots_alone(directory) -> None:
    keep()
    assert directory.stat().st_mode & 0o7777 == 0o700
    [file] = directory.iterdir()
    assert file.stat().st_mode & 0o7777 == 0o600
    assert file.read_text().splitlines() == [
        "nvhook-recording 2",
        "text\t/proc/devices\t9\t1",
        "has\t/etc/debian_version\t1",
        "end",
    ]


def test_images_with_other_facts_have_variants_and_the_oldest_goes(directory) -> None:
    for root in range(recording.VARIANTS):
        keep(root=str(root))
        os.utime(max(directory.iterdir(), key=lambda each: each.stat().st_mtime_ns), (root, root))
    assert len(names(directory)) == recording.VARIANTS
    keep(root="new")
    texts = [each.read_text() for each in directory.iterdir()]
    assert len(texts) == recording.VARIANTS
    assert not any("debian_version\t0\n" in text for text in texts)
    assert any("debian_version\tnew\n" in text for text in texts)


def test_what_was_recorded_on_another_state_of_the_host_goes(directory) -> None:
    keep(host="1", root="1")
    keep(host="1", root="2")
    keep(host="2", root="1")
    [left] = directory.iterdir()
    assert "devices\t9\t2\n" in left.read_text()


def test_files_are_bounded_in_number_and_size(directory, monkeypatch) -> None:
    monkeypatch.setattr(recording, "MAX_FILES", 5)
    for number in range(9):
        keep(number)
        for file in directory.iterdir():
            os.utime(file, (number, number)) if file.stat().st_mtime > 1e6 else None
    assert len(names(directory)) == 5
    monkeypatch.setattr(recording, "MAX_BYTES", 1000)
    keep(10, made=b"x" * 2000)
    assert sum(each.stat().st_size for each in directory.iterdir()) <= 2000
    assert not names(directory, "made-") or len(names(directory)) == 1


@pytest.mark.parametrize("spoil", ["look", "operation", "reason"])
def test_what_can_not_be_a_line_is_not_recorded(directory, spoil) -> None:
    kept = Recording()
    if spoil == "look":
        observations.of_root("entries", "/a\nrule\tc\t1\t1\trwm", answer="1")
    elif spoil == "operation":
        kept.operation("symlink", "/a\tb", "c")
    else:
        observations.spoil("it is odd")
    kept.keep(["hook"], CONFIG % 1, LOG)
    [left] = directory.iterdir()
    assert left.name.endswith(recording.REASON)


def test_a_directory_that_others_may_enter_is_not_used(directory, tmp_path) -> None:
    directory.mkdir(parents=True, mode=0o755)
    keep()
    assert names(directory) == []


def doctor(settings: Config | None = None) -> str:
    facts = HostFacts.__new__(HostFacts)
    object.__setattr__(facts, "config", settings or Config())
    check = own_checks.recordings(facts)
    return f"{check.status}: {check.saw}"


def test_doctor_says_what_is_repeated_and_what_not(directory) -> None:
    assert "none yet" in doctor()
    keep(1)
    keep(2)
    observations.begin()
    kept = Recording()
    observations.spoil("it is odd")
    kept.keep(["hook"], CONFIG % 3, LOG)
    assert doctor() == "ok: 2 kinds of containers start without Python; 1 do not: it is odd"
    assert "recordings = false" in doctor(Config(recordings=False))
    directory.chmod(0o755)
    assert doctor().startswith("failed: ")
