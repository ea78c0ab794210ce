"""What a container finds out about its GPUs, and what it should."""

from collections.abc import Sequence

from tests.runtime.expectations import COMPUTE, assert_opens, everything
from tests.runtime.simulated import Driver

SMI, CACHE, CUDA = "-- nvidia-smi", "-- loader cache", "-- libcuda"
SCRIPT = f"""
/probe "$@"
echo "{SMI}"
nvidia-smi -L
echo "{CACHE}"
/sbin/ldconfig -p | grep 'libcuda.so.1 '
echo "{CUDA}"
/cuda_check
true"""


def look(driver: Driver, mknod: bool = True) -> list[str]:
    """Return a command that opens every node, lists the GPUs, and loads libcuda by its name."""
    return ["/bin/sh", "-c", SCRIPT, "sh", *everything(driver, mknod)]


def assert_gets(
    driver: Driver,
    stdout: str,
    gpus: Sequence[int],
    control: Sequence[str] = COMPUTE,
    capabilities: Sequence[str] = ("compute", "utility"),
) -> None:
    """Check what that command printed: exactly these GPUs, by index, in every way."""
    probe, smi_marker, rest = stdout.partition(f"{SMI}\n")
    smi, cache_marker, rest = rest.partition(f"{CACHE}\n")
    cache, cuda_marker, cuda = rest.partition(f"{CUDA}\n")
    assert smi_marker, stdout
    assert cache_marker, stdout
    assert cuda_marker, stdout
    answers = dict(line.split(" = ") for line in probe.splitlines())
    assert_opens(driver, answers, gpus, control)
    uuids = [driver.gpus[index].uuid for index in gpus]
    listed = [line.rpartition("UUID: ")[2].rstrip(")") for line in smi.splitlines()]
    assert listed == (uuids if "utility" in capabilities else [])
    # The loader also looks into its default directories, so that libcuda alone would not tell.
    assert bool(cache) == ("compute" in capabilities)
    if "compute" in capabilities:
        assert cuda.splitlines() == ["cuInit = 0", f"devices = {len(uuids)}", *uuids]
    else:
        assert cuda.startswith("cuda: libcuda.so.1: cannot open shared object file"), cuda


def assert_gets_nothing(driver: Driver, stdout: str) -> None:
    """Check that it has no GPU, no control node and no driver."""
    assert_gets(driver, stdout, (), (), ())
