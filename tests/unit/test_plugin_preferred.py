"""Which devices a container had best get."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.inventory import Gpu, MigDevice
from nvhook.kubelet import preferred
from nvhook.kubelet.resources import Resource

# NVLinks of a DGX-1 with V100s: a hybrid cube mesh, where not all pairs are linked.
DGX1 = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def gpu(index: int) -> Gpu:
    return Gpu(index, name(index), index, f"0000:{index:02x}:00.0", "NVIDIA H200")


def name(index: int) -> str:
    # Their alphabetical order is not that of the indices.
    return f"GPU-{(index * 7 + 3) % 101:03d}"


def whole(count: int) -> Resource:
    return Resource("nvidia.com/gpu", tuple(map(gpu, range(count))), {})


def shared(count: int, replicas: int) -> Resource:
    gpus = tuple(map(gpu, range(count)))
    return Resource("nvidia.com/gpu", gpus, {each.uuid: replicas for each in gpus}, "time-slicing")


def links(pairs) -> preferred.Links:
    return {tuple(sorted((name(i), name(j)))): score for (i, j), score in pairs.items()}


def tree(count: int, leaf: int, socket: int, extra=None) -> preferred.Links:
    """Return links of a PCIe tree: switches of ``leaf`` GPUs, sockets of ``socket``."""
    pairs = {}
    for i, j in itertools.combinations(range(count), 2):
        near = 50 if i // leaf == j // leaf else 20 if i // socket == j // socket else 10
        pairs[i, j] = near + 100 * (extra or {}).get((i, j), 0)
    return links(pairs)


MACHINES = {
    "nothing known": (8, {}),
    "pcie switches": (8, tree(8, 2, 4)),
    "dgx-1": (8, tree(8, 2, 4, DGX1)),
    "nvlink pairs": (8, tree(8, 8, 8, {(0, 4): 4, (1, 5): 4, (2, 6): 4, (3, 7): 4})),
    "nvswitch": (8, tree(8, 2, 4, dict.fromkeys(itertools.combinations(range(8), 2), 18))),
    "odd": (5, tree(5, 2, 3, {(1, 4): 2})),
}


def ask(resource, size, table=None, available=None, must=(), policy="distributed"):
    offered = resource.ids if available is None else available
    return preferred.choose(resource, offered, must, size, table or {}, policy)


def indices(resource: Resource, chosen) -> list[int]:
    order = {each.uuid: each.index for each in resource.devices}
    return [order[each.partition("::")[0]] for each in chosen]


def worth(table, members, others) -> tuple[int, int]:
    inside = sum(preferred.score(table, a, b) for a, b in itertools.combinations(members, 2))
    left = sum(preferred.score(table, a, b) for a in members for b in others if b not in members)
    return inside, -left


@pytest.mark.parametrize("machine", MACHINES)
def test_no_set_of_whole_gpus_is_better(machine: str) -> None:
    count, table = MACHINES[machine]
    resource = whole(count)
    for size in range(1, count + 1):
        for offered in itertools.combinations(resource.ids, max(size, count - 2)):
            chosen = ask(resource, size, table, offered)
            best = max(
                worth(table, each, offered) for each in itertools.combinations(offered, size)
            )
            assert len(set(chosen)) == size
            assert set(chosen) <= set(offered)
            assert worth(table, chosen, offered) == best, (machine, size, offered)


def test_of_equal_sets_the_lowest_indices_win() -> None:
    resource = whole(8)
    assert indices(resource, ask(resource, 3)) == [0, 1, 2]
    assert indices(resource, ask(resource, 2, MACHINES["pcie switches"][1])) == [0, 1]


def test_one_gpu_is_taken_where_a_pair_is_broken_already() -> None:
    resource, table = whole(8), MACHINES["nvlink pairs"][1]
    without_2 = [each for each in resource.ids if each != name(2)]
    assert indices(resource, ask(resource, 1, table, without_2)) == [6]


def test_gpus_near_those_that_must_be_included_are_chosen() -> None:
    resource, table = whole(8), MACHINES["dgx-1"][1]
    must = [name(5)]
    assert indices(resource, ask(resource, 2, table, must=must)) in ([5, 1], [5, 6])
    assert ask(resource, 1, table, must=must) == (name(5),)


@pytest.mark.parametrize("policy", ["distributed", "packed"])
def test_a_container_gets_replicas_of_different_gpus(policy: str) -> None:
    resource = shared(4, 3)
    assert sorted(indices(resource, ask(resource, 4, policy=policy))) == [0, 1, 2, 3]
    assert sorted(indices(resource, ask(resource, 6, policy=policy))) == [0, 0, 1, 1, 2, 3]


def test_replicas_are_distributed_over_or_packed_onto_gpus() -> None:
    resource = shared(3, 4)
    used = {f"{name(0)}::0", f"{name(1)}::0", f"{name(1)}::2"}
    free = [each for each in resource.ids if each not in used]
    assert ask(resource, 1, available=free) == (f"{name(2)}::0",)
    assert ask(resource, 1, available=free, policy="packed") == (f"{name(1)}::1",)
    full = [each for each in free if name(1) not in each]
    assert ask(resource, 1, available=full, policy="packed") == (f"{name(0)}::1",)


def test_what_must_be_included_counts_as_given() -> None:
    resource = shared(2, 4)
    must = (f"{name(0)}::3",)
    assert ask(resource, 2, must=must) == (*must, f"{name(1)}::0")
    assert ask(resource, 2, must=must, policy="packed") == (*must, f"{name(1)}::0")


def test_replicas_of_gpus_that_are_linked_go_together() -> None:
    resource = shared(4, 2)
    table = links({(0, 3): 400, (0, 1): 20, (0, 2): 20, (1, 2): 20, (1, 3): 20, (2, 3): 20})
    assert indices(resource, ask(resource, 2, table)) == [0, 3]


def test_mig_devices_of_different_gpus_before_two_of_one() -> None:
    gpus = [gpu(0), gpu(1)]
    parts = tuple(
        MigDevice(each, n, f"MIG-{each.index}{n}", "1g.10gb", 7 + n, 0, 0, 0)
        for each in gpus
        for n in range(3)
    )
    resource = Resource("nvidia.com/mig-1g.10gb", parts, {})
    assert ask(resource, 2) == ("MIG-00", "MIG-10")
    assert ask(resource, 2, policy="packed") == ("MIG-00", "MIG-10")
    assert ask(resource, 1, available=["MIG-01", "MIG-10", "MIG-11", "MIG-12"]) == ("MIG-10",)
    packed = ask(resource, 1, available=["MIG-01", "MIG-10", "MIG-11", "MIG-12"], policy="packed")
    assert packed == ("MIG-01",)


@pytest.mark.parametrize("resource", [whole(3), shared(3, 2)])
def test_a_request_that_can_not_be_met_gets_what_there_is(resource: Resource) -> None:
    assert set(ask(resource, 99)) == set(resource.ids)
    assert ask(resource, 0) == ()
    assert ask(resource, -1) == ()
    assert ask(resource, 2, available=[]) == ()
    assert ask(resource, 1, must=resource.ids[:2]) == resource.ids[:2]


def test_ids_that_nobody_knows_come_last() -> None:
    resource = whole(2)
    assert ask(resource, 2, available=["GPU-x", name(1)]) == (name(1), "GPU-x")
    assert ask(resource, 3, must=["GPU-y"], available=["GPU-x", name(1)])[:2] == ("GPU-y", name(1))
    assert ask(shared(1, 2), 3, available=["GPU-x::0", f"{name(0)}::7", f"{name(0)}::1"]) == (
        f"{name(0)}::1", "GPU-x::0", f"{name(0)}::7",
    )  # fmt: skip


@given(data=st.data())
def test_any_request_gets_an_answer_and_the_order_of_ids_does_not_matter(data) -> None:
    resource = data.draw(st.sampled_from([whole(6), shared(4, 3), whole(0)]))
    pool = [*resource.ids, "GPU-stranger"]
    available = data.draw(st.lists(st.sampled_from(pool), unique=True))
    must = data.draw(st.lists(st.sampled_from(pool), max_size=3))
    size = data.draw(st.integers(-1, 20))
    policy = data.draw(st.sampled_from(["distributed", "packed"]))
    table = MACHINES["dgx-1"][1]
    chosen = ask(resource, size, table, available, must, policy)
    assert len(set(chosen)) == len(chosen)
    assert set(must) <= set(chosen) <= {*must, *available}
    wanted = max(size, len(set(must)))
    assert len(chosen) == min(wanted, len({*must, *available}))
    assert ask(resource, size, table, available[::-1], must, policy) == chosen
