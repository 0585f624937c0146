"""The commands that say how good forecasts are: `evaluate` and `benchmark`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ctsattn.cli.app import app
from ctsattn.cli.files import check_writable, read_frame, read_times, write_frame
from ctsattn.cli.options import (
    Data,
    Duplicates,
    Horizon,
    IdCol,
    Level,
    MaxSteps,
    Model,
    Quiet,
    Seed,
    TargetCol,
    TimeCol,
    TimeFormat,
)
from ctsattn.cli.steps import make_forecaster, number_or_text, read_observations, table_text

if TYPE_CHECKING:
    import pandas as pd


@app.command()
def evaluate(
    data: Data,
    forecast: Annotated[
        str | None, typer.Option(help="Score this file of forecasts instead of training.")
    ] = None,
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    time_format: TimeFormat = None,
    target_col: TargetCol = ["y"],  # noqa: B006
    horizon: Horizon = None,
    duplicates: Duplicates = "error",
    model: Model = "continuous_transformer",
    max_steps: MaxSteps = None,
    windows: Annotated[int, typer.Option(help="Cutoffs in each series, counted back from its end.")] = 3,
    seed: Seed = 0,
    level: Level = [80],  # noqa: B006
    quiet: Quiet = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="Also write the forecasts there.")
    ] = None,
) -> None:
    """Score forecasts: of a cross-validation on a file, or a forecast file against what came.

    For example: `ctsattn evaluate data.csv --windows 5 --max-steps 200`
    """
    from ctsattn.cli.scoring import against_truth, scores

    if output is not None:
        check_writable(output)
    frame = read_observations(data, id_col, time_col, time_format)
    names = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
    if forecast is not None:
        cv = against_truth(frame, read_frame(forecast, (id_col,)), **names)
    else:
        names["target_col"] = target_col if len(target_col) > 1 else target_col[0]
        cv = make_forecaster(
            model,
            max_steps,
            horizon=number_or_text(horizon),
            duplicates=duplicates,
            random_state=seed,
            verbose=not quiet,
            **names,
        ).cross_validation(frame, n_windows=windows, level=level)
    if output is not None:
        write_frame(cv, output)
    typer.echo(table_text(scores(cv, id_col, time_col, target_col, level)))


@app.command()
def benchmark(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A file, - for a pipe, or the name of a data set.")
    ],
    models: Annotated[str, typer.Option(help="Names of models, separated by commas.")] = (
        "continuous_transformer,last_value,seasonal_naive,window_mean"
    ),
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    time_format: TimeFormat = None,
    target_col: TargetCol = ["y"],  # noqa: B006
    horizon: Horizon = None,
    duplicates: Duplicates = "error",
    windows: Annotated[int, typer.Option(help="Cutoffs in each series, counted back from its end.")] = 3,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    level: Level = [80],  # noqa: B006
    quiet: Quiet = False,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Also write the table there.")] = None,
) -> None:
    """Compare models on your data by cross-validation, all at the same cutoffs and times.

    For example: `ctsattn benchmark data.csv --max-steps 200`
    """
    from ctsattn.cli.scoring import read_data, scores, side_by_side

    if output is not None:
        check_writable(output)
    frame = read_times(read_data(data, id_col), time_col, time_format)
    options = {
        "horizon": number_or_text(horizon),
        "id_col": id_col,
        "time_col": time_col,
        "target_col": target_col if len(target_col) > 1 else target_col[0],
        "duplicates": duplicates,
        "random_state": seed,
        "verbose": not quiet,
    }
    cvs: dict[str, pd.DataFrame] = {}
    for name in dict.fromkeys(part.strip() for part in models.split(",")):
        if not quiet:
            print(f"{name} …", file=sys.stderr)
        cvs[name] = make_forecaster(name, max_steps, **options).cross_validation(
            frame, n_windows=windows, level=level
        )
    table = scores(side_by_side(cvs), id_col, time_col, target_col, level)
    if output is not None:
        write_frame(table, output)
    typer.echo(table_text(table))
