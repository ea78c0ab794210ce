"""What is asked of a running process, where it is not as it seems."""

import os

import pytest

from nvhook.errors import ContainerError
from nvhook.kernel.live_process import PinnedProcess, start_time_of
from nvhook.kernel.process import Process


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    """A zombie keeps its number and its start time: the container is gone all the same."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert os.path.exists(f"/proc/{child}/stat")
        assert start_time_of(child) is None
    finally:
        os.waitpid(child, 0)
    assert start_time_of(child) is None
    assert start_time_of(os.getpid()) is not None


@pytest.mark.parametrize("number", [-1, 0, 1 << 31, 1 << 64])
def test_a_number_that_no_process_can_have(number: int) -> None:
    with pytest.raises(ContainerError, match="not the number of a process"):
        PinnedProcess(number)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (PermissionError(13, "Permission denied"), "needs root"),
        (FileNotFoundError(2, "-"), "ended"),
    ],
)
def test_what_can_not_be_opened_is_not_called_gone(monkeypatch, error, says) -> None:
    def refuse(*_arguments: object) -> int:
        raise error

    monkeypatch.setattr("nvhook.kernel.process.os.open", refuse)
    with pytest.raises(ContainerError) as caught:
        Process(1)
    assert says in caught.value.hint
