"""Each reader on made-up files in its source's format, and on the real files where they are."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ctsattn.datasets import DATASETS, load_table, to_wide
from ctsattn.datasets.environment import read_rivers
from ctsattn.datasets.long_horizon import Clock, read_table
from ctsattn.datasets.physionet import read_physionet

FILED = [name for name, card in DATASETS.items() if not card.synthetic]
MADE_UP_ROWS = {
    **dict.fromkeys(("etth1", "etth2", "ettm1", "ettm2", "ili"), 20 * 7),
    "exchange": 20 * 8,
    "weather": 20 * 3,
    "ecl": 20 * 3,
    "traffic": 20 * 3,
    "solar": 20 * 4,
    "physionet2012": 3 * 8,  # a repeated reading is averaged, a nameless row and the record's number left out
    "activity": 19 * 3,  # two readings of a tag in one millisecond
    "asas": 20,
    "groundwater": 30,
    "co2_flasks": 10,  # ten pairs, of two of which one flask is missing or rejected
    "river_samples": 20,
}


@pytest.mark.parametrize("name", FILED)
def test_reader_reads_made_up_files_in_the_format_of_its_source(name, made_up):
    frame = DATASETS[name].load(made_up(name))
    expected = MADE_UP_ROWS.get(name, 20)
    if name == "ushcn":
        expected = int(pd.read_csv(made_up(name)[0]).filter(like="Mask").to_numpy().sum())
    assert len(frame) == expected
    assert frame["y"].notna().any()


@pytest.mark.parametrize("name", FILED)
def test_real_files_have_the_rows_and_series_of_the_card(name, real_frame):
    frame, card = real_frame(name), DATASETS[name]
    assert frame["unique_id"].nunique() == card.series
    if card.rows is not None:
        assert len(frame) == card.rows


def test_flasks_of_the_real_file_are_the_accepted_moments(real_frame):
    frame = real_frame("co2_flasks")
    assert len(frame) >= 5170  # of 2024; NOAA adds to the file
    assert frame["y"].between(310, 480).all()


def test_icu_readings_at_one_time_are_averaged_and_times_are_since_admission(made_up):
    frame = DATASETS["physionet2012"].load(made_up("physionet2012"))
    heart = frame[(frame["variable"] == "HR") & (frame["unique_id"] == "900002")]
    assert heart["ds"].tolist() == [pd.Timedelta(minutes=37), pd.Timedelta(hours=47, minutes=59)]
    assert heart["y"].tolist() == [89.0, 77.0]


def test_icu_sets_read_alike_from_record_files_and_from_a_table(made_up, tmp_path):
    rows = [
        ("00:00", "Age", 61.0),
        ("00:00", "Gender", 1.0),
        ("00:00", "Height", -1.0),
        ("00:00", "ICUType", 3.0),
        ("00:00", "Weight", 70.5),
        ("00:37", "HR", 88.0),
        ("00:37", "HR", 90.0),
        ("09:05", "Temp", 36.9),
        ("26:10", "", 1.9),
        ("47:59", "HR", 77.0),
    ]
    table = pd.DataFrame(rows, columns=["Time", "Parameter", "Value"])
    sets = []
    for letter, number in zip("abc", (900001, 900002, 900003), strict=True):
        sets.append(tmp_path / f"{letter}.parquet")
        categories = table.astype({"Time": "category", "Parameter": "category"})
        categories.assign(File=np.int32(number)).to_parquet(sets[-1])
    pd.testing.assert_frame_equal(read_physionet(*sets), read_physionet(*made_up("physionet2012")))


def test_an_unknown_variable_in_a_record_is_refused_by_name(tmp_path):
    folder = tmp_path / "set-a"
    folder.mkdir()
    (folder / "1.txt").write_text("Time,Parameter,Value\n00:01,Mood,3\n")
    with pytest.raises(ValueError, match="Mood"):
        read_physionet(folder)


def test_activity_clock_counts_milliseconds_from_the_beginning_of_each_recording(made_up):
    frame = DATASETS["activity"].load(made_up("activity"))
    first = frame[frame["unique_id"] == "A01"]
    assert first["ds"].min() == pd.Timedelta(0)
    assert first["ds"].max() == pd.Timedelta(milliseconds=11 * 27)
    together = first[(first["variable"] == "ankle_left_x") & (first["ds"] == pd.Timedelta(0))]
    assert together["y"].tolist() == [1.0]  # the mean of 0.5 and 1.5


def test_m4_joins_training_and_test_on_the_clock_of_the_start_times(made_up):
    frame = DATASETS["m4_monthly"].load(made_up("m4_monthly"))
    first = frame[frame["unique_id"] == "M1"]
    assert first["y"].tolist() == [1, 2, 3, 4, *range(10, 17)]
    assert first["ds"].dt.strftime("%Y-%m-%d %H").tolist()[:3] == [
        "1990-01-31 12",
        "1990-02-28 12",
        "1990-03-31 12",
    ]
    assert len(frame[frame["unique_id"] == "M2"]) == 9


def test_m4_files_of_different_frequencies_are_refused(made_up):
    train, _, starts = made_up("m4_monthly")
    _, test, _ = made_up("m4_hourly")
    with pytest.raises(ValueError, match="not of one frequency"):
        DATASETS["m4_monthly"].load([train, test, starts])


def test_flask_pairs_are_averaged_and_rejected_or_missing_flasks_left_out(made_up):
    frame = DATASETS["co2_flasks"].load(made_up("co2_flasks"))
    assert frame["y"].tolist()[:4] == [400.5, 402.5, 405.0, 406.0]


def test_river_samples_read_alike_from_r_data_and_from_a_table(made_up, tmp_path):
    rdata = pytest.importorskip("rdata")
    table = pd.read_parquet(made_up("river_samples")[0])
    paths = []
    for i, (_, rows) in enumerate(table.groupby("site", sort=False)):
        days = (rows["Date"] - pd.Timestamp(0)).dt.days.astype(float)
        sample = rows.drop(columns="site").assign(Date=days).reset_index(drop=True)
        paths.append(tmp_path / f"{i}.RData")
        rdata.write_rda(paths[-1], {"eList": {"Sample": sample}})
    pd.testing.assert_frame_equal(read_rivers(*paths), read_rivers(made_up("river_samples")[0]))


def test_a_table_without_dates_needs_a_known_clock(made_up):
    (path,) = made_up("solar")
    with pytest.raises(ValueError, match="no column `date`"):
        read_table(path)
    table = read_table(path, Clock("2006-01-01", 600))
    assert (np.diff(table.times) == np.timedelta64(600, "s")).all()


def test_both_forms_of_exchange_name_the_same_column_as_target(made_up):
    (bare,) = made_up("exchange")
    frame = DATASETS["exchange"].load([bare])
    sixth = pd.read_csv(bare, header=None)[6]
    assert frame.loc[frame["unique_id"] == "OT", "y"].tolist() == sixth.tolist()


def test_real_exchange_reads_alike_from_both_forms(shared_data):
    plain = DATASETS["exchange"].load([shared_data / "long_horizon/exchange_rate.csv.gz"])
    bare = DATASETS["exchange"].load([shared_data / "long_horizon/exchange_rate_original.txt.gz"])
    one, other = (
        dict(list(frame.astype({"unique_id": str}).groupby("unique_id")["y"])) for frame in (plain, bare)
    )
    assert one.keys() == other.keys()
    assert all((one[channel].to_numpy() == other[channel].to_numpy()).all() for channel in one)


def test_weather_keeps_every_row_of_its_file_as_a_table_and_merges_the_repeated_one_in_the_frame(real_frame):
    frame = real_frame("weather")
    assert len(load_table("weather").values) == 52696
    assert len(frame) == 52695 * 21


def test_wide_gives_each_variable_a_column(made_up):
    frame = DATASETS["ushcn"].load(made_up("ushcn"))
    wide = to_wide(frame)
    assert list(wide.columns) == ["unique_id", "ds", *DATASETS["ushcn"].variables]
    assert wide.drop(columns=["unique_id", "ds"]).notna().to_numpy().sum() == len(frame)
    with pytest.raises(ValueError, match="no column `variable`"):
        to_wide(DATASETS["asas"].load(made_up("asas")))
