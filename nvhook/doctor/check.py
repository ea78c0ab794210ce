"""The result of one check."""

from nvhook.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

OK, WARNING, FAILED = "ok", "warning", "failed"
NOT_APPLICABLE, NOT_CHECKED = "not-applicable", "not-checked"


class Check(Record):
    """What was looked at and found.

    ``status`` is ok, warning, failed, not-applicable, or not-checked (``saw`` says why it could not
    be). ``expected`` and ``fix`` (a command, or what to change) are empty unless it is a warning
    or failed.
    """

    __slots__ = ("expected", "fix", "name", "saw", "status")

    def __init__(self, name: str, status: str, saw: str, expected: str = "", fix: str = "") -> None:
        self.name: Final = name
        self.status: Final = status
        self.saw: Final = saw
        self.expected: Final = expected
        self.fix: Final = fix


def ok(name: str, saw: str) -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, OK, saw)


def warning(name: str, saw: str, expected: str, fix: str) -> Check:
    """Return a check that found what some containers will suffer from."""
    return Check(name, WARNING, saw, expected, fix)


def failed(name: str, saw: str, expected: str, fix: str) -> Check:
    """Return a check that found what keeps containers from using a GPU."""
    return Check(name, FAILED, saw, expected, fix)


def not_applicable(name: str, why: str) -> Check:
    """Return a check that means nothing here."""
    return Check(name, NOT_APPLICABLE, why)


def not_checked(name: str, why: str) -> Check:
    """Return a check that could not be done."""
    return Check(name, NOT_CHECKED, why)


def listed(items: "Iterable[str]", limit: int = 6) -> str:
    """Join items; beyond limit only their number is told."""
    every = list(items)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more
