"""The commands. Each reads files, calls the public API once, and writes files."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ctsattn.cli.files import PIPE, check_folder, check_writable, read_frame, write_frame
from ctsattn.cli.options import (
    Data,
    Duplicates,
    FutureCol,
    Horizon,
    IdCol,
    Level,
    MaxSteps,
    Model,
    Output,
    PastCol,
    Quiet,
    Seed,
    StaticCol,
    TargetCol,
    TimeCol,
    TimeFormat,
)
from ctsattn.cli.steps import make_forecaster, number_or_text, read_observations

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    time_format: TimeFormat = None,
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

    For example: `ctsattn fit data.csv -o model.ctsattn --horizon 24`
    """
    check_folder(output)
    forecaster = make_forecaster(
        model,
        max_steps,
        horizon=number_or_text(horizon),
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
    forecaster.fit(read_observations(data, id_col, time_col, time_format)).save(output)


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
    time_format: TimeFormat = None,
    output: Output = PIPE,
) -> None:
    """Forecast with a trained model; the result goes to the pipe or a file.

    For example: `ctsattn predict model.ctsattn --steps 24 --level 50 --level 90 -o forecast.csv`
    """
    from ctsattn import Forecaster

    check_writable(output)
    forecaster = Forecaster.load(model)
    names = str(forecaster.id_col), str(forecaster.time_col), time_format
    write_frame(
        forecaster.predict(
            steps,
            df=None if history is None else read_observations(history, *names),
            horizon=number_or_text(horizon),
            times=[number_or_text(time) for time in at] or None,
            future_df=None if future is None else read_observations(future, *names),
            level=level,
        ),
        output,
    )


@app.command()
def describe(
    data: Data,
    id_col: IdCol = "unique_id",
    time_col: TimeCol = "ds",
    time_format: TimeFormat = None,
    target_col: TargetCol = ["y"],  # noqa: B006
    static_col: StaticCol = [],  # noqa: B006
    past_col: PastCol = [],  # noqa: B006
    future_col: FutureCol = [],  # noqa: B006
    horizon: Horizon = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what is in a file, and what the model will make of it.

    For example: `ctsattn describe data.csv --time-col ds --target-col y`
    """
    from ctsattn.cli import describe as reporting
    from ctsattn.data.schema import Columns

    columns = Columns.of(id_col, time_col, target_col, static_col, past_col, future_col)
    frame = read_observations(data, id_col, time_col, time_format)
    report = reporting.describe(frame, columns, horizon=number_or_text(horizon))
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
    time_format: TimeFormat = None,
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
    history = read_observations(data, id_col, time_col, time_format)
    shown = None if forecast is None else read_frame(forecast, (id_col,))
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
        known = None if truth is None else read_observations(truth, id_col, time_col, time_format)
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
