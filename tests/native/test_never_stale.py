"""What the launcher repeats is what Python would do: whatever changes between two starts."""

import os
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native import changes
from tests.native.world import KINDS, Decision, World, tick

STEPS = int(os.environ.get("NVHOOK_STALE_STEPS", "60"))
HISTORY = 12


@pytest.fixture
def world(require) -> Iterator[World]:
    require(os.geteuid() == 0, "needs root: it makes device nodes")
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="nvhook-stale-", dir=where) as name:
        made = World(Path(name))
        with made.watched():
            yield made


@pytest.mark.parametrize("seed", range(3))
def test_whatever_changes_nothing_stale_is_repeated(world, seed):
    """A walk: changes, and after each, every kind of container, with all earlier recordings."""
    chance = random.Random(seed)  # noqa: S311
    walk = changes.Walk(chance, changes.furnish(world))
    history: dict[str, list[Decision]] = {name: [] for name in KINDS}
    before: dict[str, Decision] = {}
    count: Counter[str] = Counter()
    for _ in range(STEPS):
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            walk.step()
        tick()
        for name in KINDS:
            repeated = [each for each in history[name] if world.repeats(each)]
            held = any(map(world.holds, history[name]))
            fresh = world.decide(name)
            for each in repeated:
                why = world.differs(each, fresh)
                assert not why, f"{name} after {walk.done[-12:]}: {why}"
            count["examples"] += 1
            count["compared"] += len(history[name])
            count["repeated"] += bool(repeated)
            count["tried in vain"] += held and not repeated
            count["refused"] += bool(fresh.error)
            count["spoilt"] += bool(fresh.spoilt)
            if not repeated and name in before and not world.differs(before[name], fresh):
                count["could have been repeated"] += 1
                for look in {*before[name].looks} ^ {*fresh.looks}:
                    count["because of " + b" ".join(look.split(b"\t")[:1]).decode()] += 1
            before[name] = fresh
            world.remember(fresh)
            if not (fresh.error or fresh.spoilt) and fresh not in history[name]:
                history[name] = [*history[name], fresh][-HISTORY:]
    print(dict(count))
