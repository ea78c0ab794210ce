"""Records: what a frozen dataclass with slots can do, and its mistakes told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nvhook.record import EMPTY, fields, is_record, record, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nowhere import Unknown


@record
class Point:
    """A place."""

    x: int
    y: int
    name: str = ""
    kind = "point"

    @property
    def total(self) -> int:
        return self.x + self.y


@record
class Size:
    x: int
    y: int
    name: str = ""


@record
class Labelled:
    labels: Mapping[str, str] = EMPTY
    owner: Unknown | None = None


def test_fields_are_given_by_position_and_by_name() -> None:
    for point in (Point(1, 2, "a"), Point(1, y=2, name="a"), Point(name="a", y=2, x=1)):
        assert (point.x, point.y, point.name) == (1, 2, "a")


def test_a_default_is_taken_where_nothing_is_given() -> None:
    assert Point(1, 2).name == ""
    assert Point(x=1, y=2) == Point(1, 2, "")
    assert Labelled() == Labelled({}, None)
    assert Labelled({"a": "b"}).labels["a"] == "b"


def test_an_empty_mapping_stays_empty() -> None:
    with pytest.raises(TypeError):
        EMPTY["a"] = "b"  # type: ignore[index]


@pytest.mark.parametrize(
    ("values", "given", "problem"),
    [
        ((), {}, "Point misses x, y"),
        ((1,), {}, "Point misses y"),
        ((1,), {"name": "a"}, "Point misses y"),
        ((1, 2, "a", 4), {}, "Point has 3 fields, not 4"),
        ((1, 2), {"z": 3}, "Point has no field z"),
        ((1,), {"z": 3}, "Point has no field z"),
        ((1, 2), {"kind": "line"}, "Point has no field kind"),
        ((1, 2), {"x": 3}, "Point gets two values of x"),
        ((1, 2), {"x": 3, "z": 3}, "Point has no field z"),
    ],
)
def test_wrong_fields_are_named(
    values: tuple[object, ...], given: dict[str, object], problem: str
) -> None:
    with pytest.raises(TypeError, match=f"^{problem}$"):
        Point(*values, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["x", "kind", "total", "absent"])
def test_nothing_can_be_changed(name: str) -> None:
    point = Point(1, 2)
    with pytest.raises(AttributeError, match=f"^Point is frozen: {name} can't be set$"):
        setattr(point, name, 3)
    with pytest.raises(AttributeError, match=f"^Point is frozen: {name} can't be deleted$"):
        delattr(point, name)
    assert point == Point(1, 2)


def test_there_is_room_for_the_fields_only() -> None:
    assert not hasattr(Point(1, 2), "__dict__")
    assert Point.__slots__ == ("x", "y", "name")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        object.__setattr__(Point(1, 2), "other", 1)


def test_the_class_keeps_its_name_text_and_attributes() -> None:
    assert (Point.__name__, Point.__module__, Point.__doc__) == ("Point", __name__, "A place.")
    assert Point.kind == Point(1, 2).kind == "point"
    assert Point(1, 2).total == 3
    assert repr(Point(1, 2, "a")) == "Point(x=1, y=2, name='a')"
    match Point(1, 2):
        case Point(x, 2):
            assert x == 1
        case _:
            pytest.fail("a record is matched by its class and fields")


def test_records_are_equal_by_class_and_fields() -> None:
    assert Point(1, 2) == Point(1, 2, "")
    assert Point(1, 2) != Point(2, 1)
    assert Point(1, 2) != Size(1, 2)
    assert Point(1, 2) != (1, 2, "")
    assert len({Point(1, 2), Point(1, 2), Size(1, 2), Point(2, 1)}) == 3


def test_a_field_without_hash_makes_the_record_unhashable() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Labelled({"a": "b"}))


def test_a_copy_has_the_changes() -> None:
    point = Point(1, 2, "a")
    assert replace(point, y=3) == Point(1, 3, "a")
    assert replace(point) == point
    assert point == Point(1, 2, "a")
    with pytest.raises(TypeError, match="no field z"):
        replace(point, z=1)


def test_the_fields_by_name() -> None:
    assert fields(Point(1, 2)) == {"x": 1, "y": 2, "name": ""}
    assert is_record(Point(1, 2))
    assert not is_record("a")


@pytest.mark.parametrize("default", [{}, [], set()])
def test_a_default_that_all_instances_would_share_is_refused(default: object) -> None:
    namespace = {"__annotations__": {"labels": "object"}, "labels": default}
    with pytest.raises(TypeError, match=r"Shared\.labels"):
        record(type("Shared", (), namespace))


def test_a_class_without_fields_or_with_a_base_is_refused() -> None:
    class Evaluated:  # as annotations are in a module that does not put them off, since 3.14
        pass

    class Derived(Size):  # type: ignore[misc]
        z: int

    for cls in (Evaluated, Derived):
        with pytest.raises(TypeError, match=cls.__name__):
            record(cls)
