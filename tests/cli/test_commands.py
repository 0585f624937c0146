"""Each command does its work from files to files, as a person at a shell would call it."""

import subprocess
import sys

import pandas as pd
import pytest

import ctsattn as package

QUICK = ("--model", "seasonal_naive", "--quiet")


@pytest.fixture
def model(ctsattn, wells, names, tmp_path):
    path = tmp_path / "wells.ctsattn"
    code, out, err = ctsattn("fit", wells, "-o", path, *names, "--horizon", "24h", *QUICK)
    assert (code, out, err) == (0, "", "")
    return path


def test_fit_and_predict_give_a_forecast_in_the_names_of_the_file(ctsattn, model, tmp_path):
    code, _, err = ctsattn("predict", model, "--steps", "5", "--level", "80", "-o", tmp_path / "f.csv")
    assert (code, err) == (0, "")
    forecast = pd.read_csv(tmp_path / "f.csv", dtype={"well": str})
    assert forecast.columns.tolist() == ["well", "when", "ctsattn", "ctsattn-lo-80", "ctsattn-hi-80"]
    assert forecast["well"].value_counts().to_dict() == {"007": 5, "12": 5}
    assert forecast[["ctsattn-lo-80", "ctsattn-hi-80"]].notna().all(axis=None)


def test_a_trained_model_forecasts_and_reports_its_training_in_one_line(ctsattn, wells, names, tmp_path):
    path = tmp_path / "m.ctsattn"
    code, out, err = ctsattn("fit", wells, "-o", path, *names, "--horizon", "12h", "--max-steps", "3")
    assert (code, out) == (0, "") and len(err.strip().splitlines()) == 1
    code, out, _ = ctsattn("predict", path, "--horizon", "6h")
    assert code == 0 and out.startswith("well,when,ctsattn,ctsattn-lo-80,ctsattn-hi-80\n")


def test_predict_at_a_moment_and_from_another_history(ctsattn, model, wells):
    frame = pd.read_csv(wells, dtype={"well": str})
    frame[frame["well"] == "007"].to_csv(wells, index=False)
    moment = "2024-05-01 12:34:00+00:00"
    code, out, err = ctsattn("predict", model, wells, "--at", moment)
    assert code == 0, err
    _, row = out.strip().splitlines()
    assert row.startswith("007,2024-05-01 12:34:00")


@pytest.mark.parametrize("suffix", ["csv.gz", "parquet"])
def test_results_can_be_packed(ctsattn, model, tmp_path, suffix):
    path = tmp_path / f"f.{suffix}"
    assert ctsattn("predict", model, "-n", "2", "-o", path)[0] == 0
    read = pd.read_parquet if suffix == "parquet" else pd.read_csv
    assert len(read(path)) == 4


def test_evaluate_by_cross_validation_prints_scores_and_keeps_the_forecasts(ctsattn, wells, names, tmp_path):
    words = ("--horizon", "12h", "--windows", "2", "-o", tmp_path / "cv.csv")
    code, out, err = ctsattn("evaluate", wells, *names, *QUICK, *words)
    assert code == 0, err
    header, row = out.strip().splitlines()
    assert header.split() == ["model", "rows", "mae", "rmse", "smape", "pinball", "coverage-80"]
    cv = pd.read_csv(tmp_path / "cv.csv")
    assert int(row.split()[1]) == len(cv) and cv.groupby("well")["cutoff"].nunique().tolist() == [2, 2]
    assert float(row.split()[2]) == pytest.approx((cv["level"] - cv["ctsattn"]).abs().mean(), rel=1e-3)


def test_evaluate_scores_a_forecast_file_against_what_came(ctsattn, wells, names, tmp_path):
    truth = pd.read_csv(wells, dtype={"well": str})
    truth.assign(ctsattn=truth["level"] + 2).drop(columns="level").tail(20).to_csv(
        tmp_path / "f.csv", index=False
    )
    code, out, err = ctsattn("evaluate", wells, "--forecast", tmp_path / "f.csv", *names)
    assert code == 0, err
    assert out.strip().splitlines()[1].split()[:3] == ["ctsattn", "20", "2"]


def test_benchmark_compares_models_on_the_same_rows(ctsattn, wells, names, tmp_path):
    words = ("--models", "last_value,seasonal_naive", "--horizon", "12h", "--quiet", "-o", tmp_path / "t.csv")
    code, _, err = ctsattn("benchmark", wells, *names, *words)
    assert code == 0, err
    table = pd.read_csv(tmp_path / "t.csv")
    assert set(table["model"]) == {"last_value", "seasonal_naive"}
    assert table["rows"].nunique() == 1 and table["mae"].is_monotonic_increasing


def test_plot_draws_data_forecasts_and_cross_validations(ctsattn, model, wells, names, tmp_path):
    ctsattn("predict", model, "-o", tmp_path / "f.csv")
    ctsattn("evaluate", wells, *names, *QUICK, "--horizon", "12h", "-o", tmp_path / "cv.csv")
    for shown in ([], [tmp_path / "f.csv"], [tmp_path / "cv.csv"]):
        picture = tmp_path / f"{len(list(tmp_path.iterdir()))}.png"
        code, _, err = ctsattn("plot", wells, *shown, *names, "-o", picture)
        assert code == 0, err
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_datasets_lists_shows_and_writes(ctsattn, tmp_path):
    listing = ctsattn("datasets")[1]
    assert set(package.datasets.DATASETS) <= set(listing.split())
    card, shown = package.datasets.card("etth1"), ctsattn("datasets", "etth1")[1]
    assert card.title in shown and card.sources[0].names[0] in shown and f"{card.rows:,} rows" in shown
    assert ctsattn("datasets", "sines", "-o", tmp_path / "s.parquet")[0] == 0
    assert pd.read_parquet(tmp_path / "s.parquet").columns.tolist() == ["unique_id", "ds", "y"]


def test_the_run_that_help_shows_works(ctsattn, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [line.strip(" •\n") for line in ctsattn("--help")[1].splitlines() if line.strip().startswith("•")]
    assert [line.split()[1] for line in shown] == ["datasets", "describe", "fit", "predict", "plot"]
    for line in shown:
        line = line.replace("--max-steps 200", "--max-steps 2 --quiet")
        code, _, err = ctsattn(*line.split()[1:])
        assert code == 0, f"{line}: {err}"
    assert (tmp_path / "forecast.png").exists()


def test_a_file_as_a_german_spreadsheet_writes_it_goes_all_the_way(ctsattn, tmp_path):
    days = pd.date_range("2024-01-05", periods=40, freq="W")
    rows = [f"{day:%d.%m.%Y};{place % 7},5" for place, day in enumerate(days)]
    data, model, answer = (tmp_path / name for name in ("euro.csv", "m.ctsattn", "f.csv"))
    data.write_text("\n".join(["Datum;Wert", *rows]))
    names = ("--time-col", "Datum", "--target-col", "Wert", "--time-format", "%d.%m.%Y")
    assert ctsattn("fit", data, "-o", model, *names, *QUICK)[0] == 0
    assert ctsattn("predict", model, "--steps", "2", "-o", answer)[0] == 0
    assert pd.read_csv(answer)["Datum"].tolist() == ["2024-10-13", "2024-10-20"]
    assert ctsattn("plot", data, answer, *names, "-o", tmp_path / "f.png")[0] == 0


def test_advice_is_given_in_the_words_of_the_shell(ctsattn, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("t;y\n31.01.2024;1\n01.02.2024;2\n01.02.2024;3\n")
    assert "Set --time-col" in ctsattn("describe", path)[2]
    assert "--time-format '%d.%m.%Y'" in ctsattn("describe", path, "--time-col", "t")[2]
    words = ("--time-col", "t", "--time-format", "%d.%m.%Y", "-o", tmp_path / "m")
    assert "pass --duplicates 'mean' or 'last'" in ctsattn("fit", path, *words)[2]


BAD = {
    "no such file": (("describe", "nowhere.csv"), "There is no file 'nowhere.csv'"),
    "no such column": (("describe", "wells.csv", "--time-col", "nix"), "'nix'"),
    "text as target": (("fit", "text.csv", "-o", "m"), "'y'"),
    "no such model": (("fit", "good.csv", "-o", "m", "--model", "nix"), "Models: "),
    "no model file": (("predict", "wells.csv"), "wells.csv"),
    "result without a kind": (("evaluate", "good.csv", "-o", "cv"), "does not say what the file is"),
    "result without a folder": (("fit", "good.csv", "-o", "no/such/m"), "There is no folder 'no/such'"),
    "no such data set": (("datasets", "etth3"), "Did you mean"),
    "duplicates": (("fit", "twice.csv", "-o", "m"), "2024-01-01"),
    "level out of range": (("benchmark", "good.csv", "--level", "180", "--models", "last_value"), "180"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_leaves_with_code_2_and_one_line(ctsattn, wells, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    days = pd.date_range("2024-01-01", periods=30)
    good = pd.DataFrame({"ds": days, "y": range(30)})
    good.to_csv("good.csv", index=False)
    good.assign(y="north").to_csv("text.csv", index=False)
    pd.concat([good, good.assign(y=-1.0)]).to_csv("twice.csv", index=False)
    words, message = BAD[case]
    code, out, err = ctsattn(*words, *(("--quiet",) if words[0] in ("fit", "benchmark") else ()))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("ctsattn: ") and message in err


def test_a_reason_of_several_lines_is_told_in_one(ctsattn, monkeypatch):
    def fail(**_: object) -> None:
        raise ValueError("a reason\n  of pandas:\n\n - in lines")

    monkeypatch.setattr("ctsattn.cli.app", fail)
    assert ctsattn("describe", "wells.csv") == (2, "", "ctsattn: a reason of pandas: - in lines\n")


def test_wrong_usage_leaves_with_code_2(ctsattn):
    code, _, err = ctsattn("fit")
    assert code == 2 and "DATA" in err


def test_version_and_module_call_agree():
    run = [sys.executable, "-m", "ctsattn", "--version"]
    assert (
        subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip() == package.__version__
    )


def test_a_reader_that_leaves_early_is_no_error(wells, names):
    script = f"{sys.executable} -m ctsattn datasets sines -o - | head -n 1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout == "unique_id,ds,y\n" and done.stderr == "" and done.returncode == 0


def test_help_loads_nothing_heavy():
    probe = (
        "import sys\nfrom ctsattn.cli import main\n"
        "try:\n    main(['fit', '--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'pandas', 'lightning', 'sklearn', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True)
