"""Merging plans: a plan for the driver and one for each device become one, in whatever steps."""

from hypothesis import given
from hypothesis import strategies as st

from nvhook.core.edits import (
    CachedLibrary,
    CgroupRule,
    DeviceNode,
    LdCacheUpdate,
    Mount,
    Plan,
    Symlink,
    TextFile,
)
from nvhook.core.planner import merge

NUMBERS = st.integers(0, 2)
LIBRARIES = st.builds(CachedLibrary, st.sampled_from(["a", "b"]), st.just("/a"), NUMBERS)
EDITS = st.one_of(
    st.builds(lambda n: DeviceNode(f"/dev/nvidia{n}", f"/dev/nvidia{n}", 195, n), NUMBERS),
    st.builds(lambda n: CgroupRule("c", 195, n), NUMBERS),
    st.builds(lambda n: Mount(f"/h/{n}", f"/c/{n}"), NUMBERS),
    st.builds(lambda n: Symlink("/link", f"target{n}"), NUMBERS),
    st.builds(lambda n: TextFile("/text", str(n)), NUMBERS),
    st.builds(LdCacheUpdate, st.lists(LIBRARIES, min_size=1, max_size=3).map(tuple)),
)
PLANS = st.builds(Plan, st.lists(EDITS, max_size=6).map(tuple))


@given(PLANS, PLANS, PLANS)
def test_merging_is_associative(a: Plan, b: Plan, c: Plan) -> None:
    assert merge((merge((a, b)), c)) == merge((a, merge((b, c)))) == merge((a, b, c))


@given(PLANS, PLANS)
def test_merging_is_idempotent(a: Plan, b: Plan) -> None:
    once = merge((a, b))
    assert merge((once,)) == merge((once, once)) == merge((once, a, b)) == once


@given(PLANS, PLANS)
def test_merging_loses_nothing_and_adds_nothing(a: Plan, b: Plan) -> None:
    def parts(*plans: Plan) -> set[object]:
        edits = [edit for plan in plans for edit in plan.edits]
        libraries = [each for e in edits if isinstance(e, LdCacheUpdate) for each in e.libraries]
        return {*[e for e in edits if not isinstance(e, LdCacheUpdate)], *libraries}

    merged = merge((a, b))
    assert parts(merged) == parts(a, b)
    assert len(merged.edits) == len(set(merged.edits))
    updates = [place for place, e in enumerate(merged.edits) if isinstance(e, LdCacheUpdate)]
    assert updates in ([], [len(merged.edits) - 1])


@given(PLANS)
def test_an_empty_plan_changes_nothing(a: Plan) -> None:
    assert merge((a, Plan(()))) == merge((Plan(()), a)) == merge((a,))
