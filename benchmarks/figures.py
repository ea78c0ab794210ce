"""Medians, what is added to a base, and ratios with 95 % intervals: one table of them.

What is added is the interquartile mean of the differences by round, which takes half the rounds of
their median for the same interval; intervals are of rounds drawn again (bootstrap).
"""

from __future__ import annotations

import json
import math
import platform
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundles import Taken, cgroups, output_of

import nvhook

RESAMPLES = 1000
Times = dict[str, list[Taken]]


@dataclass(frozen=True)
class Row:
    """A row of the table: a measured action, and the one that it adds something to."""

    name: str
    label: str
    base: str = ""


@dataclass(frozen=True)
class Ratio:
    """What one row adds to its base (without one: takes), divided by what another does.

    ``kind``, cpu or wall, is what the bar is for.
    """

    above: Row
    below: Row
    label: str
    bar: float = math.inf
    kind: str = "cpu"


@dataclass(frozen=True)
class Interval:
    """A figure and the 95 % interval around it."""

    value: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Print it."""
        room = 10 ** (4 - digits)
        texts = [
            f"{each:.{digits if each < room else 0}f}" for each in (self.value, self.low, self.high)
        ]
        return "{} ({} to {})".format(*texts)

    def verdict(self, ratio: Ratio) -> str:
        """Say whether the bar is met, as far as the interval tells."""
        if ratio.bar == math.inf:
            return ""
        word = "met" if self.high <= ratio.bar else "missed" if self.low > ratio.bar else "open"
        return f"{ratio.kind} <= {ratio.bar}: {word}"


class Figures:
    """What was measured, of one kind: ``cpu`` or ``wall``."""

    def __init__(self, times: Times, kind: str) -> None:
        self.values = {name: [getattr(each, kind) for each in all_] for name, all_ in times.items()}

    def of(self, row: Row) -> list[float]:
        """Return what a row adds, by round; without a base what it takes.

        The machine's own drift is in both of one round.
        """
        values: list[float] = self.values[row.name]
        if not row.base:
            return values
        return [with_it - base for with_it, base in zip(values, self.values[row.base], strict=True)]

    def median(self, row: Row) -> float:
        """Return the median of what a row takes."""
        values: list[float] = self.values[row.name]
        return statistics.median(values)

    def added(self, row: Row) -> Interval:
        """Return what a row adds."""
        values = self.of(row)
        drawn = [middle([values[number] for number in rounds]) for rounds in _draws(len(values))]
        return _interval(middle(values), drawn)

    def ratio(self, ratio: Ratio) -> Interval:
        """Return the ratio of what two rows add."""
        above, below = self.of(ratio.above), self.of(ratio.below)
        drawn = []
        for rounds in _draws(len(above)):
            divisor = middle([below[number] for number in rounds])
            if divisor > 0:
                drawn.append(middle([above[number] for number in rounds]) / divisor)
        divisor = middle(below)
        if divisor <= 0 or len(drawn) < RESAMPLES // 2:  # too few rounds for this machine's noise
            return Interval(math.nan, 0, math.inf)
        return _interval(middle(above) / divisor, drawn)


def middle(values: list[float]) -> float:
    """Return the mean of the middle half."""
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _draws(rounds: int) -> list[list[int]]:
    draw = random.Random(1)  # noqa: S311 - no secret
    return [draw.choices(range(rounds), k=rounds) for _ in range(RESAMPLES)]


def _interval(value: float, drawn: list[float]) -> Interval:
    drawn.sort()
    cut = len(drawn) // 40
    return Interval(value, drawn[cut], drawn[-1 - cut])


def report(
    times: Times,
    sections: Mapping[str, Sequence[Row]],
    ratios: Sequence[Ratio],
    notes: str,
    as_json: bool,
) -> None:
    """Print what was measured; notes say what it was measured with."""
    kinds = {kind: Figures(times, kind) for kind in ("cpu", "wall")}
    rounds = len(next(iter(times.values())))
    runc = output_of("runc", "--version").split()[2]
    where = [
        f"nvhook {nvhook.__version__}, {rounds} rounds, medians in ms, {notes}",
        f"Linux {platform.release()}, runc {runc}, {cgroups()}",
    ]
    if as_json:
        print(json.dumps({"where": where, **_document(kinds, sections, ratios)}, indent=2))
        return
    print("\n".join(where))
    print(f"\n{'':<31}{'CPU':>7}  {'added (95 %)':<22}{'wall':>7}  {'added (95 %)':<22}".rstrip())
    for title, rows in sections.items():
        print(title)
        for row in rows:
            cells = [
                f"{each.median(row):7.1f}  {each.added(row).text(1) if row.base else '':<22}"
                for each in kinds.values()
            ]
            print(f"  {row.label:<29}{''.join(cells)}".rstrip())
    print(f"\n{'':<38}{'CPU (95 %)':<22}{'wall (95 %)':<22}bar")
    for ratio in ratios:
        found = {kind: each.ratio(ratio) for kind, each in kinds.items()}
        both = "".join(f"{each.text(2):<22}" for each in found.values())
        print(f"{ratio.label:<38}{both}{found[ratio.kind].verdict(ratio)}".rstrip())


def _document(
    kinds: dict[str, Figures], sections: Mapping[str, Sequence[Row]], ratios: Sequence[Ratio]
) -> dict[str, object]:
    rows = {
        row.name: {
            kind: {"median": each.median(row)}
            | ({"added": vars(each.added(row))} if row.base else {})
            for kind, each in kinds.items()
        }
        for section in sections.values()
        for row in section
    }
    return {
        "rows": rows,
        "ratios": {
            ratio.label: {"bar": f"{ratio.kind} <= {ratio.bar}"}
            | {kind: vars(each.ratio(ratio)) for kind, each in kinds.items()}
            for ratio in ratios
        },
    }
