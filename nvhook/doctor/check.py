"""The result of one check."""

from collections.abc import Iterable
from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"
NOT_APPLICABLE, NOT_CHECKED = "not-applicable", "not-checked"


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at and found.

    ``status`` is ok, warning, failed, not-applicable, or not-checked (``saw`` says why it could not
    be). ``expected`` and ``fix`` (a command, or what to change) are empty unless it is a warning
    or failed.
    """

    name: str
    status: str
    saw: str
    expected: str = ""
    fix: str = ""


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


def listed(items: Iterable[str], limit: int = 6) -> str:
    """Join items; beyond limit only their number is told."""
    every = list(items)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return ", ".join(every[:limit]) + more
