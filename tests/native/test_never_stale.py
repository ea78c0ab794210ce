"""What the launcher repeats is what Python would do: whatever changes between two starts."""

import os
import random
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native import changes
from tests.native.world import KINDS, Decision, World

STEPS = int(os.environ.get("NVHOOK_STALE_STEPS", "60"))
HISTORY = 12
LOOKS = {
    *("text", "names", "inodes", "node", "stamp", "link", "place"),  # at the host
    *("has", "same", "entries", "bytes"),  # at the container's root
}


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
        world.tick()
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


# What a host or an image may begin with, beside what furnish() makes.
BEGINNINGS = {
    "plain": (),
    "rich": (
        ("debian", "there"),
        ("compat", "there"),
        ("image-cache", "short"),
        ("musl", "there"),
        ("musl-path", "there"),
    ),
    "bare": (("partitioned", "none"), ("usr-lib64", "none"), ("lib32", "there")),
}
# Kinds that among them take every look there is: each single change is tried with them.
EACH = ("everything", "mig", "features", "no-gpu")
# Looks that nothing needs alone, and why.
EXACT = "the name is a node's own, which is looked at, too"
SPARE = {
    "names sim/dev/ gdrdrv": EXACT,
    "names sim/dev/infiniband rdma_cm": EXACT,
    "names sim/dev/ nvidia-nvswitchctl": EXACT,
    "names sim/dev/ nvidia-nvswitch": "every container's look at names with nvidia sees as much",
    "names sim/dev/ nvidia-fs": "the same",
}


def pattern(look: bytes, base: str) -> str:
    """Return a look without its answer and what else makes it one of several of its sort."""
    kind, *what = look.decode().split("\t")[:-1]
    if kind == "same":
        return kind
    if kind == "bytes":
        return f"{kind} {what[0].rpartition('/')[0]}"
    if kind == "text":
        what.pop()
    text = " ".join([kind, *what]).replace(base, "")
    text = re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9]", "BUS", text)
    return re.sub("[0-9]+", "N", re.sub("card|renderD|-card|-render", "DRM", text))


class Needs:
    """Which looks were taken, and which of them a change needs that no other look sees."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.base = f"{world.base}/"
        self.recorded: dict[str, Decision] = {}
        self.taken: set[str] = set()
        self.needed: dict[str, str] = {}

    def record(self) -> None:
        """Have a recording of each kind that holds."""
        for kind in KINDS:
            known = self.recorded.get(kind)
            if known is None or known.error or not self.world.holds(known):
                made = self.recorded[kind] = self.world.decide(kind)
                self.world.remember(made)
                self.taken |= {pattern(look, self.base) for look in made.looks}

    def compare(self, change: str) -> None:
        """See what the recordings are worth after a change."""
        # All looks before any decision, which remembers what it finds out.
        alone = {}
        for kind, before in self.recorded.items():
            if len(others := self.world.otherwise(before)) == 1:
                assert self.world.holds(before, without=others[0])
                alone[kind] = pattern(others[0], self.base)
        for kind in EACH:
            if not self.recorded[kind].error and self.world.repeats(self.recorded[kind]):
                why = self.world.differs(self.recorded[kind], self.world.decide(kind))
                assert not why, f"{kind} after {change}: {why}"
        for kind, look in alone.items():
            if look not in self.needed and self.world.differs(
                self.recorded[kind], self.world.decide(kind)
            ):
                self.needed[look] = change


def test_each_look_is_needed(world):
    """But for any one of them, there is a change after which something stale would be repeated.

    And after each of the changes alone nothing stale is.
    """
    places = changes.furnish(world)
    needs = Needs(world)
    for beginning in BEGINNINGS.values():
        for name in places:
            changes.change(places, name, "begin")
        for name, place in places.items():
            for state in place.states:
                for each in beginning:
                    changes.change(places, *each)
                world.tick()
                needs.record()
                changes.change(places, name, state)
                world.tick()
                needs.compare(f"{name}={state}")
                changes.change(places, name, dict(beginning).get(name, "begin"))
    assert needs.taken - needs.needed.keys() == SPARE.keys()
    assert {look.partition(" ")[0] for look in needs.needed} == LOOKS


@pytest.mark.parametrize(
    ("kind", "changes_before", "changes_after"),
    [
        # A link to nothing is no library; one that loops makes the image odd.
        ("one", [("compat", "dangling")], [("compat", "loop")]),
        ("one", [("compat", "dangling")], [("compat", "through-a-file")]),
        # Where no GPU is: any of these makes the machine another one.
        ("no-gpu", [("gpus", "none")], [("tegra", "there")]),
        ("no-gpu", [("gpus", "none")], [("dxg", "node")]),
        # MPS's directory is trusted only where no link leads to it.
        ("one", [("mps", "begin")], [("mps", "link")]),
        ("one", [("mps", "link")], [("mps", "begin")]),
        ("features", [], [("cufile", "link")]),
        ("one", [], [("persistenced-directory", "link")]),
        ("one", [("compat", "there")], [("compat-libcuda", "in-place")]),
        ("one", [], [("settings", "no-rules")]),
    ],
)
def test_what_is_hard_to_see(world, kind, changes_before, changes_after):
    places = changes.furnish(world)
    for each in changes_before:
        changes.change(places, *each)
    world.tick()
    before = world.decide(kind)
    world.remember(before)
    assert not before.error + before.spoilt
    assert world.repeats(before)

    for each in changes_after:
        changes.change(places, *each)

    assert world.differs(before, world.decide(kind))
    assert not world.repeats(before)


def test_what_was_found_out_before_something_was_found_out_anew_is_not_repeated(world):
    """The host looks as it did: but what is only found out once a boot may be otherwise by now."""
    places = changes.furnish(world)
    changes.change(places, "nvidia5", "node")
    world.tick()
    found, remembered = world.decide("one"), world.decide("one")
    world.remember(found)
    assert world.repeats(found)
    assert world.repeats(remembered)

    changes.change(places, "minor", "five")
    changes.change(places, "devices", "caps")
    world.decide("one")
    changes.change(places, "devices", "begin")

    assert not world.repeats(found)
    assert not world.repeats(remembered)
    assert b"nvidia5" in b"".join(world.decide("one").operations)
