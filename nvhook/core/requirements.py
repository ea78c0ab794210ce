"""What an image requires of the host: NVIDIA_REQUIRE_*, checked before anything is changed.

A blank separates alternatives, a comma joins terms that must all hold, and every variable must
hold: ``cuda>=12.4 brand=tesla,driver>=470,driver<471``. A term is a property (cuda, driver, arch,
brand), an operator and a value. Versions are compared number by number: ``535.054.03`` is
``535.54.3``.
Source: nvidia-container-stack reference, section 1.3.
"""

from __future__ import annotations

from nvhook.core import gpu_models
from nvhook.core.cuda_versions import cuda_version, is_beyond_table
from nvhook.errors import HostError, RequestError
from nvhook.record import record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from nvhook.core.inventory import Gpu

PROPERTIES = ("cuda", "driver", "arch", "brand")
OPERATORS = ("!=", "<=", ">=", "=", "<", ">")  # the longer first
WAY_OUT = "start without the check: -e NVIDIA_DISABLE_REQUIRE=1"
_SHOWN = 60


@record
class Term:
    """One comparison; ``text`` is as written."""

    property: str
    operator: str
    value: str
    text: str


def check(
    requirements: Iterable[tuple[str, str]],
    driver_version: str,
    known_cuda: str,
    gpus: tuple[Gpu, ...],
) -> None:
    """Do nothing if the host satisfies every requirement with each of these GPUs.

    Each requirement is (variable, text), as in ``NVIDIA_REQUIRE_CUDA``, ``cuda>=12.4 brand=tesla``.
    ``known_cuda`` is the driver's CUDA version, empty where only the driver's own version is known.
    Without a GPU, terms on arch and brand hold.

    Raises: RequestError for a text that is not in the grammar, HostError for a requirement that is
        not satisfied, or of which nobody can tell.
    """
    for variable, text in requirements:
        alternatives = parse(variable, text)
        if not alternatives:
            continue
        for gpu in gpus or (None,):
            host = _Host(driver_version, known_cuda, gpu)
            answers = [host.satisfies(terms) for terms in alternatives]
            if True not in answers:
                unknown = answers.index(None) if None in answers else None
                raise _refusal(variable, alternatives, unknown, host)


def parse(variable: str, text: str) -> tuple[tuple[Term, ...], ...]:
    """Return the alternatives, each the terms that must all hold; empty terms are passed over.

    Raises: RequestError.
    """
    alternatives = []
    for part in text.split():
        terms = [_term(term, variable) for term in part.split(",") if term]
        if terms:
            alternatives.append(tuple(terms))
    return tuple(alternatives)


def _term(text: str, variable: str) -> Term:
    found = [(text.find(operator), -len(operator), operator) for operator in OPERATORS]
    places = [place for place in found if place[0] >= 0]
    if not places:
        raise _invalid(text, variable, "an operator is one of = != < <= > >=")
    operator = min(places)[2]
    name, _, value = text.partition(operator)
    name = name.lower()
    if name not in PROPERTIES:
        raise _invalid(text, variable, f"properties are {', '.join(PROPERTIES)}")
    if name == "brand":
        if operator not in ("=", "!="):
            raise _invalid(text, variable, "a brand is compared with = and !=")
        if not value:
            raise _invalid(text, variable, "the brand is empty")
    elif _numbers(value) is None:
        raise _invalid(text, variable, "a version has numbers and dots")
    return Term(name, operator, value, text)


def _invalid(text: str, variable: str, why: str) -> RequestError:
    return RequestError(
        f"requirement error: invalid expression {_short(text)!r} in {variable[:_SHOWN]}: {why}",
        f"correct it, or {WAY_OUT}",
    )


def _numbers(text: str) -> tuple[int, ...] | None:
    """Return the fields of a version without zeros at the end, None if it is none."""
    fields = text.split(".")
    if len(text) > 100 or not all(field.isascii() and field.isdigit() for field in fields):
        return None
    numbers = [int(field) for field in fields]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


class _Host:
    """What a term is compared with: the driver, and one GPU."""

    def __init__(self, driver_version: str, known_cuda: str, gpu: Gpu | None) -> None:
        self.driver = driver_version
        self.cuda = known_cuda or cuda_version(driver_version)
        # A driver newer than the table has at least the table's newest CUDA.
        self.cuda_may_be_newer = not known_cuda and is_beyond_table(driver_version)
        self.gpu = gpu

    def satisfies(self, terms: tuple[Term, ...]) -> bool | None:
        """Tell whether all terms hold; None: no term is false, and one can't be told."""
        answers = [self._holds(term) for term in terms]
        if False in answers:
            return False
        return None if None in answers else True

    def _holds(self, term: Term) -> bool | None:
        if term.property == "cuda":
            return self._cuda_holds(term)
        if term.property == "driver":
            return _compare(self.driver, term)
        if self.gpu is None:
            return True
        if term.property == "arch":
            return _compare(gpu_models.arch(self.gpu.model), term)
        names = gpu_models.brands(self.gpu.model)
        if not names:
            # NVML calls some boards just that, and what it calls this one is not known.
            return None
        return (term.value.lower() in names) is (term.operator == "=")

    def _cuda_holds(self, term: Term) -> bool | None:
        answer = _compare(self.cuda, term)
        if not self.cuda_may_be_newer:
            return answer
        is_enough = term.operator in (">", ">=") and answer is True
        # The table's newest is beyond the value: so is anything newer.
        return answer if is_enough or _compare_numbers(self.cuda, ">", term.value) else None

    def describe(self) -> str:
        """Say what the host has, in a few words."""
        newer = " or newer" if self.cuda_may_be_newer else ""
        text = f"this host has driver {self.driver[:20]} with CUDA {self.cuda or 'unknown'}{newer}"
        if self.gpu is None:
            return text
        names = " or ".join(gpu_models.brands(self.gpu.model)) or "unknown"
        arch = gpu_models.arch(self.gpu.model) or "unknown"
        return f"{text}, GPU {self.gpu.index} {self.gpu.model[:40]}: brand {names}, arch {arch}"


def _compare(have: str, term: Term) -> bool | None:
    """Compare a version of the host; None where the host's is not known."""
    return _compare_numbers(have, term.operator, term.value)


def _compare_numbers(have: str, operator: str, value: str) -> bool | None:
    ours, theirs = _numbers(have), _numbers(value)
    if not have or ours is None or theirs is None:
        return None
    return {
        "=": ours == theirs,
        "!=": ours != theirs,
        "<": ours < theirs,
        "<=": ours <= theirs,
        ">": ours > theirs,
        ">=": ours >= theirs,
    }[operator]


def _refusal(
    variable: str,
    alternatives: tuple[tuple[Term, ...], ...],
    unknown: int | None,
    host: _Host,
) -> HostError:
    shown = _short(",".join(term.text for term in alternatives[unknown or 0]))
    others = f" (or {len(alternatives) - 1} others)" if len(alternatives) > 1 else ""
    if unknown is None:
        remedy = "update the driver or use an image for an older CUDA"
        words = f"unsatisfied condition: {shown}{others}, {variable[:30]}"
    else:
        remedy = "nobody can tell without NVML"
        words = f"unsatisfied condition: can't tell whether {shown} holds{others}"
    return HostError(
        f"requirement error: {words}: {host.describe()}",
        f"{remedy}, or -e NVIDIA_DISABLE_REQUIRE=1",
    )


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
