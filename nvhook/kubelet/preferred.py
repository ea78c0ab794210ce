"""Choose the devices that a container had best get. Pure, and it never fails.

Whole GPUs: those that are linked best with each other, then those whose leaving costs the rest
least. Of GPUs that several containers share, and of MIG devices: one on each GPU before a second on
any, and among GPUs by policy the least or the most used. The lower index wins a tie.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from nvhook.core.inventory import Device, MigDevice
from nvhook.kubelet.resources import REPLICA, Resource, gpu_uuid
from nvhook.kubelet.settings import SharedPolicy

SEARCHED = 16  # of so many GPUs every set is looked at, of more only the best next GPU each time

# By the UUIDs of two GPUs, in alphabetical order: how well they are linked (topology.py).
Links = Mapping[tuple[str, str], int]


def choose(
    resource: Resource,
    available: Sequence[str],
    must_include: Sequence[str],
    size: int,
    links: Links,
    policy: SharedPolicy,
) -> tuple[str, ...]:
    """Return up to ``size`` ids, those of ``must_include`` first.

    Ids that the resource does not have come last, in the order given: the kubelet knows better.
    """
    taken = list(dict.fromkeys(must_include))
    offered = [each for each in dict.fromkeys(available) if each not in set(taken)]
    places = {name: place for place, name in enumerate(resource.ids)}
    known = sorted((each for each in offered if each in places), key=places.__getitem__)
    wanted = min(size - len(taken), len(known))
    if wanted > 0:
        ours = [each for each in taken if each in places]
        if resource.replicas or any(isinstance(each, MigDevice) for each in resource.devices):
            taken += _spread(resource, known, ours, wanted, links, policy)
        else:
            taken += _linked(known, ours, wanted, links)
    strangers = [each for each in offered if each not in places]
    taken += strangers[: max(0, size - len(taken))]
    return tuple(taken)


def score(links: Links, first: str, second: str) -> int:
    """Return how well two GPUs are linked; 0 where nobody knows."""
    return links.get((first, second) if first < second else (second, first), 0)


# ---- parts of GPUs


def _spread(
    resource: Resource,
    offered: Sequence[str],
    taken: Sequence[str],
    wanted: int,
    links: Links,
    policy: SharedPolicy,
) -> list[str]:
    """Return ids, each from the device that is then the best."""
    devices = {device.uuid: device for device in resource.devices}
    free: dict[str, list[str]] = {}
    for name in offered:
        free.setdefault(name.partition(REPLICA)[0], []).append(name)
    used = _used(resource, devices, free)
    mine = [devices[name.partition(REPLICA)[0]] for name in taken]
    by_gpu = Counter(gpu_uuid(device) for device in mine)
    by_device = Counter(device.uuid for device in mine)
    sign = 1 if policy == "distributed" else -1
    order = {uuid: place for place, uuid in enumerate(devices)}

    def rank(uuid: str) -> tuple[int, int, int, int, int]:
        gpu = gpu_uuid(devices[uuid])
        nearness = sum(score(links, gpu, other) for other in by_gpu)
        return by_gpu[gpu], by_device[uuid], sign * used[gpu], -nearness, order[uuid]

    chosen = []
    for _ in range(wanted):
        uuid = min(free, key=rank)
        chosen.append(free[uuid].pop(0))
        if not free[uuid]:
            del free[uuid]
        gpu = gpu_uuid(devices[uuid])
        by_gpu[gpu] += 1
        by_device[uuid] += 1
        used[gpu] += 1
    return chosen


def _used(
    resource: Resource, devices: Mapping[str, Device], free: Mapping[str, Sequence[str]]
) -> Counter[str]:
    """Return how many ids of each GPU containers have, by its UUID."""
    used: Counter[str] = Counter()
    for uuid, device in devices.items():
        used[gpu_uuid(device)] += resource.replicas.get(uuid, 1) - len(free.get(uuid, ()))
    return used


# ---- whole GPUs


def _linked(offered: Sequence[str], taken: Sequence[str], wanted: int, links: Links) -> list[str]:
    weights = _Weights(offered, taken, links)
    places = weights.search(wanted) if len(offered) <= SEARCHED else weights.grow(wanted)
    return [offered[place] for place in sorted(places)]


class _Weights:
    """What sets of GPUs, named by their place among those offered, are worth.

    A set's worth is the sum of its links, among them and to those that the container has already;
    of equal sets the one wins that has the weaker links to the GPUs left over.
    """

    def __init__(self, offered: Sequence[str], taken: Sequence[str], links: Links) -> None:
        count = len(offered)
        rows = [[0] * count for _ in offered]
        for i in range(count):
            for j in range(i):
                rows[i][j] = rows[j][i] = score(links, offered[i], offered[j])
        total = [sum(row) for row in rows]
        # One number: no sum of links to the left-over GPUs outweighs one point inside the set.
        scale = 1 + sum(total)
        # A chosen GPU's links to others of the set count as lost to the rest once each: + 2.
        self._pairs = [[(scale + 2) * weight for weight in row] for row in rows]
        self._alone = [
            scale * sum(score(links, name, other) for other in taken) - total[place]
            for place, name in enumerate(offered)
        ]

    def search(self, wanted: int) -> list[int]:
        """Return the best set, of equal ones the first in order."""
        best: list[int] = []
        best_worth: int | None = None
        strongest = [max(row) for row in self._pairs]

        def add(members: list[int], worth: int, gains: list[int], start: int) -> None:
            nonlocal best, best_worth
            left = wanted - len(members)
            if left == 0:
                if best_worth is None or worth > best_worth:
                    best, best_worth = members, worth
                return
            # No GPU brings more than its links to the set and, halved, its best one to each other.
            hopes = [gains[i] + (left - 1) * strongest[i] / 2 for i in range(start, len(gains))]
            if best_worth is not None and worth + sum(sorted(hopes)[-left:]) <= best_worth:
                return
            for i in range(start, len(gains) - left + 1):
                row = self._pairs[i]
                after = [gain + weight for gain, weight in zip(gains, row, strict=True)]
                add([*members, i], worth + gains[i], after, i + 1)

        add([], 0, self._alone, 0)
        return best

    def grow(self, wanted: int) -> list[int]:
        """Return a good set: always the best next GPU, from the best first one."""
        sets = [self._grown(seed, wanted) for seed in range(len(self._alone))]
        return max(sets, key=lambda grown: grown[0])[1]

    def _grown(self, seed: int, wanted: int) -> tuple[int, list[int]]:
        members: list[int] = []
        worth = 0
        gains = [*self._alone]
        outside = set(range(len(gains)))
        best = seed
        while True:
            members.append(best)
            worth += gains[best]
            outside.remove(best)
            if len(members) == wanted:
                return worth, members
            for place in outside:
                gains[place] += self._pairs[place][best]
            best = max(outside, key=lambda place: (gains[place], -place))
