"""The decision table: which sentence each outcome calls for.

It was written before any test row; since then two sentences were put more carefully, and numbers stand
beside all.
"""

from __future__ import annotations

from collections.abc import Callable

from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.plan import Plan
from experiments.hypotheses.statistics import Interval, holm


def decide(findings: dict[str, Finding], plan: Plan) -> list[str]:
    """The sentences of the decision table that the primary contrasts call for, each with its numbers."""
    margin = plan.tables["study"]["margin_percent"]
    adjusted = dict(zip(PRIMARY, holm([findings[name].p or 1.0 for name in PRIMARY]), strict=True))
    return [
        f"{words[_outcome(findings[name], adjusted[name], margin)]} "
        f"({name}: {_numbers(findings[name])}, Holm-adjusted p {adjusted[name]:.2g})"
        for name, words in PRIMARY.items()
    ]


def _outcome(finding: Finding, p: float, margin: float) -> str:
    """Better or worse by more than the margin, equivalent within it, or open; test and interval agree."""
    _, low, high = finding.interval.percent()
    if high < -margin and p < 0.05:
        return "better"
    if low > margin and p < 0.05:
        return "worse"
    return "equivalent" if finding.interval.within(margin) else "open"


_REGULAR = "On regular series continuous attention on unit gaps"
_IRREGULAR = "With irregular sampling continuous attention on real gaps"
_OPEN = "is shown neither to differ by more than the margin from, nor to equal,"
_EXACT = "With irregular sampling the exact integral"
PRIMARY = {
    "C1": {
        "better": f"{_REGULAR} is better than softmax by more than the margin.",
        "worse": f"{_REGULAR} is worse than softmax by more than the margin: the guess is refuted there.",
        "equivalent": f"{_REGULAR} and softmax are equivalent: the guess is refuted there.",
        "open": f"{_REGULAR} {_OPEN} softmax.",
    },
    "C2": {
        "better": f"{_IRREGULAR} is better than softmax by more than the margin.",
        "worse": f"{_IRREGULAR} is worse than softmax by more than the margin.",
        "equivalent": f"{_IRREGULAR} and softmax are equivalent.",
        "open": f"{_IRREGULAR} {_OPEN} softmax.",
    },
    "C3": {
        "better": f"{_EXACT} is better than the trapezoid rule by more than the margin: take it there.",
        "worse": f"{_EXACT} is worse than the trapezoid rule by more than the margin.",
        "equivalent": f"{_EXACT} and the trapezoid rule are equivalent: the measure is what counts.",
        "open": f"{_EXACT} {_OPEN} the trapezoid rule.",
    },
}


def further(findings: dict[str, Finding]) -> list[str]:
    """The sentences of the decision table that rest on secondary findings, as far as they were run."""
    return [
        f"{words[0] if holds(findings[name].interval) else words[1]} ({name}: {_numbers(findings[name])})"
        for name, holds, words in SECONDARY
        if name in findings
    ]


def _numbers(finding: Finding) -> str:
    """Mean and interval in percent."""
    mean, low, high = finding.interval.percent()
    return f"{mean:+.2f} %, 95 % interval {low:+.2f} to {high:+.2f} %"


SECONDARY: list[tuple[str, Callable[[Interval], bool], tuple[str, str]]] = [
    (
        "A3 / A0, real less shuffled",
        lambda x: x.high < 0 or x.low > 0,
        (
            "The effect on regular series differs between real order and shuffled order.",
            "The effect on regular series is not shown to differ between real and shuffled order.",
        ),
    ),
    (
        "slope of A4 / A0 on the irregularity of the gaps",
        lambda x: x.high < 0,
        (
            "The gain of real gaps over softmax grows with the irregularity of the sampling.",
            "The gain of real gaps over softmax is not shown to grow with the irregularity of the sampling.",
        ),
    ),
    (
        "A2 / A4, irregular",
        lambda x: x.within(0.5),
        (
            "First order equals the exact integral within half a percent: take it where it is faster.",
            "First order is not shown to be within half a percent of the exact integral.",
        ),
    ),
    (
        "A4 / A6, irregular",
        lambda x: x.high < 0,
        (
            "Attending to the observations as they are is better than imputing a regular grid first.",
            "Attending to the observations as they are is not shown to be better than imputing first.",
        ),
    ),
    (
        "A3 / A0, validation loss in the first 20 %",
        lambda x: x.high < 0,
        (
            "Continuous attention learns faster early on, as the post saw on text.",
            "The early advantage that the post saw on text is not shown on regular series.",
        ),
    ),
]
