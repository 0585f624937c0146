"""The verdict from the committed rows: `make verdict` writes verdict.md and prints it.

Nothing is trained here and no number is typed in: every figure comes from the rows in results/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from experiments.hypotheses import rows as committed
from experiments.hypotheses.claims import CLAIMS
from experiments.hypotheses.claims.finding import Finding
from experiments.hypotheses.coverage import coverage
from experiments.hypotheses.decisions import decide, further
from experiments.hypotheses.figures import draw
from experiments.hypotheses.plan import Plan, check_frozen
from experiments.hypotheses.statistics import dataset_means

REPORT = Path(__file__).parent / "verdict.md"


def table(findings: list[Finding]) -> list[str]:
    """Findings as a Markdown table, in percent."""
    lines = ["| comparison | mean | 95 % interval | p | data sets |", "|---|---:|---:|---:|---:|"]
    for f in findings:
        mean, low, high = f.interval.percent()
        p = "" if f.p is None else f"{f.p:.3g}"
        lines.append(
            f"| {f.name} | {mean:+.2f} % | {low:+.2f} to {high:+.2f} % | {p} | {f.interval.datasets} |"
        )
    return lines


def by_dataset(finding: Finding) -> list[str]:
    """Every data set of a finding, in percent."""
    if finding.ratios is None:
        return []
    means = dataset_means(finding.ratios).sort_values()
    return [
        "",
        ", ".join(f"{name} {100 * np.expm1(r):+.2f} %" for name, r in means.items()) + ".",
    ]


def report(plan: Plan) -> str:
    """The whole report in Markdown."""
    found = committed.read()
    lines = [
        "# Verdict",
        "",
        f"Plan {plan.sha256[:12]}; change of the test MSE, below zero the first arm is better.",
        "",
    ]
    primary: dict[str, Finding] = {}
    named: dict[str, Finding] = {}
    sections: list[str] = []
    for name, claim in CLAIMS.items():
        findings = claim.test(found, plan)
        notes = claim.notes(found, plan) if findings and hasattr(claim, "notes") else []
        primary |= {f.name[:2]: f for f in findings if f.name[:3] in ("C1:", "C2:", "C3:")}
        named |= {f.name: f for f in findings}
        sections += ["", f"## {name}", "", claim.CLAIM, "", f"*Statistic.* {claim.STATISTIC}", ""]
        sections += [f"*Threshold.* {claim.THRESHOLD}", ""]
        if not findings:
            sections += ["It has not been run."]
            continue
        sections += [*table(findings), *by_dataset(findings[0]), *(x for note in notes for x in ("", note))]
    lines += [f"- {sentence}" for sentence in (*decide(primary, plan), *further(named))]
    return "\n".join([*lines, *sections, "", "## Coverage", "", *coverage(found, plan)]) + "\n"


def main() -> int:
    """Write the report and print it; say in one line what is missing where it cannot be made yet."""
    try:
        plan = Plan.read()
        check_frozen(plan)
        text = report(plan)
    except (ValueError, FileNotFoundError) as missing:
        print(f"There is no verdict yet: {missing}", file=sys.stderr)
        return 2
    REPORT.write_text(text)
    draw(committed.read(), plan)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
