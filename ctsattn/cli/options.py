"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="CSV, TSV or Parquet, compressed or not; - reads a pipe.")
]
IdCol = Annotated[str, typer.Option(help="Column that names the series; a file without it is one series.")]
TimeCol = Annotated[str, typer.Option(help="Column of timestamps.")]
TimeFormat = Annotated[
    str | None,
    typer.Option(help="How times are written that do not begin with the year, such as %d.%m.%Y or %m/%d/%Y."),
]
TargetCol = Annotated[list[str], typer.Option(help="Column to forecast; may be given again.")]
StaticCol = Annotated[list[str], typer.Option(help="Covariate constant within a series; may be given again.")]
PastCol = Annotated[list[str], typer.Option(help="Covariate known up to now; may be given again.")]
FutureCol = Annotated[list[str], typer.Option(help="Covariate known ahead; may be given again.")]
Horizon = Annotated[
    str | None,
    typer.Option(
        help="How far to look ahead: steps (24) or a span (36h, 90D; 36.0 where times are numbers). "
        "Default: from the data."
    ),
]
Duplicates = Annotated[str, typer.Option(help="Several rows of a series at one time: error, mean or last.")]
Model = Annotated[str, typer.Option(help="Name of the model: continuous_transformer, seasonal_naive, …")]
MaxSteps = Annotated[int | None, typer.Option(help="Training steps at most.")]
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same forecast.")]
Level = Annotated[list[float], typer.Option(help="Central band in percent; may be given again.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress line.")]
Output = Annotated[str, typer.Option("--output", "-o", help="File to write; - writes CSV to the pipe.")]
