"""What a container may and may not reach, asked by opening things inside of it."""

from collections.abc import Iterable, Mapping

from tests.runtime.bundle import Bundle, asks, flat
from tests.runtime.engine import Result
from tests.runtime.simulated import Driver

# No driver stands behind the simulated numbers: an open that the cgroup lets through ends in ENXIO.
ALLOWED = "ENXIO"
DENIED = "EPERM"
COMPUTE = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


def everything(driver: Driver, mknod: bool = True) -> list[str]:
    """Return the probe's arguments to open every node: the injected, the image's own, a fresh one.

    mknod: also a node that the container makes for itself, which needs a writable root.
    """
    commands: list[list[str]] = []
    for name, (major, minor) in driver.numbers().items():
        commands += [["open", f"/dev/{name}"], ["open", f"/nodes/{flat(name)}"]]
        if mknod:
            made = f"/made-{flat(name)}"
            commands += [["mknod", made, str(major), str(minor)], ["open", made]]
    return asks(commands)


def ask_everything(bundle: Bundle, mknod: bool = True) -> None:
    """Let the container open every node."""
    bundle.args("/probe", *everything(bundle.driver, mknod))


def assert_reaches(
    bundle: Bundle, result: Result, gpus: Iterable[int], control: Iterable[str]
) -> None:
    """Check that exactly these GPUs (by index) and control nodes can be opened, in every way."""
    assert_opens(bundle.driver, result.answers, gpus, control)


def assert_opens(
    driver: Driver, answers: Mapping[str, str], gpus: Iterable[int], control: Iterable[str]
) -> None:
    """Check the same of the probe's answers alone."""
    given = {f"nvidia{driver.gpus[index].minor}" for index in gpus} | set(control)
    expected = {}
    for name in driver.numbers():
        expected[f"open /dev/{name}"] = ALLOWED if name in given else "ENOENT"
        expected[f"open /nodes/{flat(name)}"] = ALLOWED if name in given else DENIED
        made = f"/made-{flat(name)}"
        if f"mknod {made}" in answers:
            expected[f"mknod {made}"] = "OK"
            expected[f"open {made}"] = ALLOWED if name in given else DENIED
    assert answers == expected


def uuids(bundle: Bundle, gpus: Iterable[int]) -> list[str]:
    """Return the UUIDs of GPUs by index."""
    return [bundle.driver.gpus[index].uuid for index in gpus]
