"""The commands. Each reads files, calls the public API once, and writes files."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ctsattn.cli.files import PIPE, check_folder, check_writable, read_frame, write_frame

if TYPE_CHECKING:
    import pandas as pd

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Data = Annotated[
    str, typer.Argument(metavar="DATA", help="CSV, TSV or Parquet, compressed or not; - reads a pipe.")
]
IdCol = Annotated[str, typer.Option(help="Column that names the series; a file without it is one series.")]
TimeCol = Annotated[str, typer.Option(help="Column of timestamps.")]
TargetCol = Annotated[list[str], typer.Option(help="Column to forecast; may be given again.")]
StaticCol = Annotated[list[str], typer.Option(help="Covariate constant within a series; may be given again.")]
PastCol = Annotated[list[str], typer.Option(help="Covariate known up to now; may be given again.")]
FutureCol = Annotated[list[str], typer.Option(help="Covariate known ahead; may be given again.")]
Horizon = Annotated[
    str | None,
    typer.Option(help="How far to look ahead: steps (24) or a span (36h, 90D). Default: from the data."),
]
Duplicates = Annotated[str, typer.Option(help="Several rows of a series at one time: error, mean or last.")]
Model = Annotated[str, typer.Option(help="Name of the model: continuous_transformer, seasonal_naive, …")]
MaxSteps = Annotated[int | None, typer.Option(help="Training steps at most.")]
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same forecast.")]
Level = Annotated[list[float], typer.Option(help="Central band in percent; may be given again.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress line.")]
Output = Annotated[str, typer.Option("--output", "-o", help="File to write; - writes CSV to the pipe.")]


@app.callback(invoke_without_command=True)
def _start(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Probabilistic forecasts from any timestamps, at any timestamps.

    A run that works, on data that needs no download:

    - `ctsattn datasets sines -o data.csv`
    - `ctsattn describe data.csv`
    - `ctsattn fit data.csv -o model.ctsattn --max-steps 200`
    - `ctsattn predict model.ctsattn -o forecast.csv`
    - `ctsattn plot data.csv forecast.csv -o forecast.png`
    """
    if version:
        import ctsattn

        typer.echo(ctsattn.__version__)
        raise typer.Exit


@app.command()
def demo(
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where the picture goes.")
    ] = "ctsattn-demo.png",
) -> None:
    """Forecast weekly CO2 with weeks missing: a table beside three naive forecasts, and a picture."""
    from ctsattn import demo as example

    check_folder(output)
    typer.echo(example.run(output))


@app.command()
def fit(
    data: Data,
    output: Annotated[str, typer.Option("--output", "-o", help="File of the trained model.")],
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    target_col: TargetCol = ["y"],  # noqa: B006 - typer copies defaults
    static_col: StaticCol = [],  # noqa: B006
    past_col: PastCol = [],  # noqa: B006
    future_col: FutureCol = [],  # noqa: B006
    horizon: Horizon = None,
    duplicates: Duplicates = "error",
    model: Model = "continuous_transformer",
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    quiet: Quiet = False,
) -> None:
    """Train on a file and save the model.

    For example: `ctsattn fit data.csv -o model.ctsattn --horizon 14D`
    """
    check_folder(output)
    forecaster = _forecaster(
        model,
        max_steps,
        horizon=_steps_or_span(horizon),
        id_col=id_col,
        time_col=time_col,
        target_col=target_col if len(target_col) > 1 else target_col[0],
        static_cols=static_col,
        past_cols=past_col,
        future_cols=future_col,
        duplicates=duplicates,
        random_state=seed,
        verbose=not quiet,
    )
    forecaster.fit(read_frame(data, (id_col,))).save(output)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="File that `ctsattn fit` wrote.")],
    history: Annotated[
        str | None,
        typer.Argument(metavar="HISTORY", help="Newer or other history; default: what was trained on."),
    ] = None,
    steps: Annotated[int | None, typer.Option("--steps", "-n", help="So many steps of each series.")] = None,
    horizon: Annotated[str | None, typer.Option(help="A span to cover with steps, such as 36h.")] = None,
    at: Annotated[list[str], typer.Option(help="A timestamp to forecast; may be given again.")] = [],  # noqa: B006
    future: Annotated[
        str | None, typer.Option(help="File of known covariates at the times to forecast.")
    ] = None,
    level: Level = [80],  # noqa: B006
    output: Output = PIPE,
) -> None:
    """Forecast with a trained model; the result goes to the pipe or a file.

    For example: `ctsattn predict model.ctsattn --horizon 14D --level 50 --level 90 -o forecast.csv`
    """
    from ctsattn import Forecaster

    check_writable(output)
    forecaster = Forecaster.load(model)
    texts = (str(forecaster.id_col),)
    write_frame(
        forecaster.predict(
            steps,
            df=None if history is None else read_frame(history, texts),
            horizon=_number_or_text(horizon),
            times=[_number_or_text(time) for time in at] or None,
            future_df=None if future is None else read_frame(future, texts),
            level=level,
        ),
        output,
    )


@app.command()
def evaluate(
    data: Data,
    forecast: Annotated[
        str | None, typer.Option(help="Score this file of forecasts instead of training.")
    ] = None,
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
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
    frame = read_frame(data, (id_col,))
    names = {"id_col": id_col, "time_col": time_col, "target_col": target_col}
    if forecast is not None:
        cv = against_truth(frame, read_frame(forecast, (id_col,)), **names)
    else:
        names["target_col"] = target_col if len(target_col) > 1 else target_col[0]
        cv = _forecaster(
            model,
            max_steps,
            horizon=_steps_or_span(horizon),
            duplicates=duplicates,
            random_state=seed,
            verbose=not quiet,
            **names,
        ).cross_validation(frame, n_windows=windows, level=level)
    if output is not None:
        write_frame(cv, output)
    typer.echo(_table(scores(cv, id_col, time_col, target_col, level)))


@app.command()
def describe(
    data: Data,
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    target_col: TargetCol = ["y"],  # noqa: B006
    static_col: StaticCol = [],  # noqa: B006
    past_col: PastCol = [],  # noqa: B006
    future_col: FutureCol = [],  # noqa: B006
    horizon: Horizon = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what is in a file, and what the model will make of it.

    For example: `ctsattn describe data.csv --time-col when --target-col level`
    """
    from ctsattn.cli import describe as reporting
    from ctsattn.data.schema import Columns

    columns = Columns.of(id_col, time_col, target_col, static_col, past_col, future_col)
    report = reporting.describe(read_frame(data, (id_col,)), columns, horizon=_steps_or_span(horizon))
    typer.echo(json.dumps(report.as_dict(), indent=2) if as_json else reporting.to_text(report))


@app.command()
def plot(
    data: Data,
    forecast: Annotated[
        str | None, typer.Argument(metavar="FORECAST", help="Forecasts, or a cross-validation.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Picture: .png, .svg or .pdf.")
    ] = "ctsattn.png",
    truth: Annotated[str | None, typer.Option(help="File of what came.")] = None,
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    target_col: TargetCol = ["y"],  # noqa: B006
    series: Annotated[list[str], typer.Option(help="Series to draw; may be given again.")] = [],  # noqa: B006
    max_series: Annotated[int, typer.Option(help="Most panels.")] = 6,
    title: Annotated[str | None, typer.Option(help="Title.")] = None,
) -> None:
    """Draw data, and forecasts with their bands, at the true timestamps.

    For example: `ctsattn plot data.csv forecast.csv -o forecast.png`
    """
    from ctsattn.plotting import plot_cross_validation, plot_forecast

    check_folder(output)
    texts = (id_col,)
    history = read_frame(data, texts)
    shown = None if forecast is None else read_frame(forecast, texts)
    options: dict[str, Any] = {
        "id_col": id_col,
        "time_col": time_col,
        "target_col": target_col,
        "ids": series or None,
        "max_series": max_series,
        "title": title,
    }
    if shown is not None and "cutoff" in shown.columns:
        figure = plot_cross_validation(shown, history, **options)
    else:
        known = None if truth is None else read_frame(truth, texts)
        figure = plot_forecast(history, shown, known, **options)
    figure.savefig(output, dpi=150)


@app.command()
def datasets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Data set; none lists them all.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write its rows there.")] = None,
    where: Annotated[str | None, typer.Option("--cache", help="Folder for downloads.")] = None,
    wide: Annotated[
        bool, typer.Option(help="One column for each variable, as fit takes several targets.")
    ] = False,
    truth: Annotated[bool, typer.Option(help="Keep the noise-free value of a made series.")] = False,
) -> None:
    """List the data sets, show the card of one, or write one to a file.

    For example: `ctsattn datasets sines -o data.parquet`
    """
    from ctsattn import datasets as catalogue
    from ctsattn.cli.cards import card_text, list_text

    if name is None:
        typer.echo(list_text(catalogue.DATASETS))
    elif output is None:
        typer.echo(card_text(catalogue.card(name)))
    else:
        check_writable(output)
        frame = catalogue.load(name, cache=where)
        frame = catalogue.to_wide(frame) if wide else frame
        write_frame(frame if truth else frame.drop(columns="truth", errors="ignore"), output)


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
    frame = read_data(data, id_col)
    options = {
        "horizon": _steps_or_span(horizon),
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
        cvs[name] = _forecaster(name, max_steps, **options).cross_validation(
            frame, n_windows=windows, level=level
        )
    table = scores(side_by_side(cvs), id_col, time_col, target_col, level)
    if output is not None:
        write_frame(table, output)
    typer.echo(_table(table))


def _forecaster(model: str, max_steps: int | None, **options: Any) -> Any:
    """A forecaster with a model of the table `MODELS`, under its name."""
    from ctsattn import Forecaster
    from ctsattn.forecasting import Training
    from ctsattn.models import MODELS

    if model not in MODELS:
        raise ValueError(f"There is no model {model!r}. Models: {', '.join(sorted(MODELS))}.")
    training = None if max_steps is None else Training(max_steps=max_steps)
    return Forecaster(model=MODELS[model](), training=training, **options)


def _steps_or_span(text: str | None) -> int | str | float | None:
    """Read a horizon: `24` is steps, `36h` a span."""
    if text is None or not text.isdigit():
        return text
    return int(text)


def _number_or_text(text: str | None) -> str | float | int | None:
    """Read a moment or a span: a number on a numeric clock, else text."""
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _table(frame: pd.DataFrame) -> str:
    """A table for a terminal: four digits, no index."""
    return frame.to_string(index=False, float_format=lambda number: f"{number:.4g}")
