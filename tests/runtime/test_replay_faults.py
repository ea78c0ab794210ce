"""A replay that is refused something, or killed: all of the container, or nothing and one line.

NVHOOK_TEST_ALL=1 tries every system call of a replay, in minutes; otherwise a dozen of each kind.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.runtime.faults import Fault, Faulty

ALL = os.environ.get("NVHOOK_TEST_ALL") == "1"
SAMPLE = 12


@pytest.fixture(params=["runc", "runc_v2"])
def faulty(request, bundles, require) -> Iterator[Faulty]:
    """A container with all that is repeated: rules or programs, a mask, every kind of edit."""
    require(shutil.which("strace") is not None, "needs strace")
    engine = request.getfixturevalue(request.param)
    bundle = bundles(engine)
    bundle.show_proc_driver()
    bundle.put("/etc/ld.so.cache", b"")
    bundle.link("/usr/lib64/libcuda.so.1", "libcuda.so.1.1")
    bundle.ask("NVIDIA_VISIBLE_DEVICES=1")
    made = Faulty(engine, bundle)
    yield made
    made.end()


def _some(faults: Sequence[Fault]) -> list[Fault]:
    """Return each, or some of every call that changes something: the last of each, then others."""
    if ALL:
        return list(faults)
    last = {fault.call: fault for fault in faults}
    rest = [fault for fault in faults if fault not in last.values()]
    step = max(1, len(last) // SAMPLE)
    some = [*list(last.values())[::step][:SAMPLE], *rest[:: max(1, len(rest) // 4)][:4]]
    # What went wrong once: the way back, and no memory for what is to be undone.
    once = [last[call] for call in ("setns", "unshare") if call in last]
    once += [fault for fault in faults if fault.call == "mmap"][-5:]
    return list(dict.fromkeys([*some, *once]))


def _check(faulty: Faulty, faults: Sequence[Fault]) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    wrong = []
    for fault in _some(faults):
        try:
            outcomes[faulty.check(fault)] += 1
        except AssertionError as error:  # noqa: PERF203 - all are tried, then told of
            wrong.append(str(error))
    assert not wrong, f"{len(wrong)} of {len(faults)}:\n" + "\n\n".join(wrong)
    print(dict(outcomes))
    return outcomes


def test_killed(faulty: Faulty) -> None:
    assert set(_check(faulty, list(faulty.points(kills=True)))) == {"killed"}


def test_refused_once(faulty: Faulty) -> None:
    outcomes = _check(faulty, list(faulty.points(kills=False)))
    assert outcomes["by Python"], outcomes


def test_refused_for_good(faulty: Faulty) -> None:
    outcomes = _check(faulty, list(faulty.lasting()))
    assert outcomes["refused"], outcomes
