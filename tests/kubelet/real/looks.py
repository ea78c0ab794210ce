"""What a pod's container sees, which goes on when it has looked; and GPUs that fail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.engines.inside import assert_gets, look
from tests.kubelet.real.node import Node
from tests.runtime.expectations import COMPUTE
from tests.runtime.simulated import Driver

STAY = "trap exit TERM; sleep 1000 & wait"


def looking(driver: Driver) -> list[str]:
    """Return a command that looks at everything, says so, and goes on."""
    shell, option, script, *rest = look(driver)
    return [shell, option, f"{script}\necho seen\n{STAY}", *rest]


def seen(node: Node, pod: str, attempt: int = 0) -> str:
    """Wait until a container has looked; return what it saw."""
    node.wait_for_pod(pod, "Running")
    output = lambda: node.output(pod, attempt)  # noqa: E731
    node.host.wait(lambda: output().endswith("seen\n"), output)
    return output().removesuffix("seen\n")


def assert_sees_what_it_was_given(
    node: Node,
    driver: Driver,
    pod: str,
    resource: str,
    control: Sequence[str] = COMPUTE,
    attempt: int = 0,
) -> set[str]:
    """Check that a container sees exactly the GPUs that its pod was given; return their UUIDs."""
    output = seen(node, pod, attempt)
    uuids = {each.partition("::")[0] for each in node.allocated(resource)[pod]}
    assert_gets(driver, output, [gpu.index for gpu in driver.gpus if gpu.uuid in uuids], control)
    return uuids


@contextmanager
def failing(driver: Driver, index: int) -> Iterator[None]:
    """Make a simulated GPU fail meanwhile."""
    state = driver.directory / "state"
    original = state.read_text()
    state.write_text(f"{original}gpu{index}.status=lost\n")
    try:
        yield
    finally:
        state.write_text(original)
