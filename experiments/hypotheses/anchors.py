"""Errors of forecasts that need no training, on the study's test windows: is the network worth comparing?

python -m experiments.hypotheses.anchors [--tasks FOLDER]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from experiments.hypotheses.evaluation import shown_under
from experiments.hypotheses.plan import PLAN, Plan, check_frozen
from experiments.hypotheses.prepared import load_task
from experiments.hypotheses.run import RESULTS, append, finished, stamp
from experiments.hypotheses.tasks import DeviceTask, Windows
from experiments.hypotheses.training import squared_error


def last_value(shown: Windows) -> Tensor:
    """The last value that is shown, for the whole horizon."""
    last = (shown.past_mask.sum(-1, keepdim=True) - 1).clamp(min=0)
    return shown.past_values.gather(-1, last).expand_as(shown.future_values)


def window_mean(shown: Windows) -> Tensor:
    """The mean of what is shown."""
    count = shown.past_mask.sum(-1, keepdim=True).clamp(min=1)
    return ((shown.past_values * shown.past_mask).sum(-1, keepdim=True) / count).expand_as(
        shown.future_values
    )


ANCHORS: dict[str, Callable[[Windows], Tensor]] = {"last_value": last_value, "window_mean": window_mean}


def main(arguments: list[str] | None = None) -> int:
    """Write the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tasks", type=Path, help="folder of prepared tasks; default: cut them anew")
    parser.add_argument("--out", type=Path, default=RESULTS / "rows-anchors.csv", help="file to add rows to")
    options, plan = parser.parse_args(arguments), Plan.read(PLAN)
    check_frozen(plan)
    done = finished(options.out)
    for name in plan.sets:
        task = DeviceTask(load_task(plan, name, options.tasks), "cpu")
        for condition, part in shown_under(task, plan.conditions(name)).items():
            facts = {
                "experiment": "anchors",
                "data": name,
                "condition": condition,
                "seed": 0,
                "split": "test",
            }
            facts |= {"metric": "mse", "irregularity": part.irregularity, "config_hash": plan.sha256[:12]}
            shape = {"lookback": task.task.shape.lookback, "horizon": task.task.shape.horizon}
            rows = [
                {**facts, **shape, **stamp(task.device), "arm": arm, "mixer": arm, "value": error}
                for arm, forecast in ANCHORS.items()
                if ("anchors", arm, name) not in done
                for error in [float(squared_error(forecast(part.windows), part.windows).mean())]
            ]
            if rows:
                append(options.out, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
