"""Small frozen values: what a dataclass with slots is, for modules that a first start loads.

The bare interpreter starts in 9 ms. Importing dataclasses takes another 19, and each frozen class
of theirs, which is compiled from text, 0.5 ms; a class made here takes 20 microseconds.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import ClassVar, TypeVar

    from typing_extensions import Never, dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**_of_the_type_checker):
        return lambda decorator: decorator


# The default of a field that is a mapping. Its type is types.MappingProxyType, without an import.
EMPTY: Mapping[str, Never] = type(type.__dict__)({})


@dataclass_transform(frozen_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a class a record: its annotations are the fields, what they are assigned the defaults.

    What has no annotation stays an attribute of the class. Annotations are not evaluated: the
    module needs ``from __future__ import annotations``.
    """
    namespace = {**vars(cls)}
    names = tuple(namespace.get("__annotations__", ()))
    if not names or cls.__bases__ != (object,):
        raise TypeError(
            f"{cls.__name__} has a base or no fields (or no annotations from __future__)"
        )
    for name in ("__dict__", "__weakref__"):
        namespace.pop(name, None)
    defaults = {name: namespace.pop(name) for name in names if name in namespace}
    for name, default in defaults.items():
        if isinstance(default, dict | list | set):
            raise TypeError(
                f"{cls.__name__}.{name}: a default of all instances must not be mutable"
            )
    namespace |= {"__slots__": names, "__match_args__": names, "_defaults": defaults}
    return type(cls.__name__, (_Value,), namespace)


def fields(value: object) -> dict[str, object]:
    """Return the fields of a record by name, in order."""
    assert isinstance(value, _Value)
    return {name: getattr(value, name) for name in value.__slots__}


def is_record(value: object) -> bool:
    """Tell whether a value is of a class that record() has made."""
    return isinstance(value, _Value)


def replace(value: T, **changes: object) -> T:
    """Return a copy of a record with some fields changed."""
    return value.__class__(**{**fields(value), **changes})


class _Value:
    """What records can do."""

    __slots__: tuple[str, ...] = ()
    _defaults: ClassVar[dict[str, object]]
    _loads: ClassVar[tuple[Callable[[object], object], ...]]
    _stores: ClassVar[tuple[Callable[[object, object], None], ...]]

    def __init_subclass__(cls) -> None:
        slots = [getattr(cls, name) for name in cls.__slots__]
        cls._loads = tuple([slot.__get__ for slot in slots])
        cls._stores = tuple([slot.__set__ for slot in slots])

    def __init__(self, *values: object, **given: object) -> None:
        cls = self.__class__
        every: Sequence[object] = values
        if given or len(values) != len(cls.__slots__):
            every = _completed(cls, values, given)
        for store, value in zip(cls._stores, every):  # noqa: B905 - they are as many
            store(self, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self.__class__.__name__} is frozen: {name} can't be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self.__class__.__name__} is frozen: {name} can't be deleted")

    def __eq__(self, other: object) -> bool:
        if self.__class__ is not other.__class__:
            return NotImplemented
        return [load(self) for load in self._loads] == [load(other) for load in self._loads]

    def __hash__(self) -> int:
        return hash((self.__class__, *[load(self) for load in self._loads]))

    def __repr__(self) -> str:
        shown = ", ".join([f"{name}={value!r}" for name, value in fields(self).items()])
        return f"{self.__class__.__name__}({shown})"


def _completed(
    cls: type[_Value], values: tuple[object, ...], given: dict[str, object]
) -> list[object]:
    """Return the value of every field, in order."""
    names = cls.__slots__
    first = dict(zip(names, values))  # noqa: B905 - the others are given by name
    every = {**cls._defaults, **first, **given}
    if len(every) == len(names) >= len(values) and first.keys().isdisjoint(given):
        try:
            return [every[name] for name in names]
        except KeyError:
            pass
    raise TypeError(f"{cls.__name__} {_mistake(cls, values, given)}")


def _mistake(cls: type[_Value], values: tuple[object, ...], given: dict[str, object]) -> str:
    names = cls.__slots__
    if len(values) > len(names):
        return f"has {len(names)} fields, not {len(values)}"
    if unknown := [name for name in given if name not in names]:
        return f"has no field {', '.join(unknown)}"
    if twice := [name for name in names[: len(values)] if name in given]:
        return f"gets two values of {', '.join(twice)}"
    known = {*names[: len(values)], *given, *cls._defaults}
    return f"misses {', '.join([name for name in names if name not in known])}"
