"""What is asked of a running process, where it is not as it seems."""

import os

from nvhook.kernel.live_process import start_time_of


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
