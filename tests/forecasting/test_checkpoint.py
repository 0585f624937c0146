"""The model file: JSON and arrays, atomic, nothing executed."""

import json
import os
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ctsattn import Forecaster
from ctsattn.forecasting import checkpoint

from .conftest import QUICK, TINY, tiny


@dataclass(frozen=True)
class Config:
    width: int = 4
    lags: tuple[int, ...] = (1, 2)


def test_what_is_written_is_read_again(tmp_path):
    tensors = {
        "network/a": torch.arange(6.0).reshape(2, 3),
        "data/b": torch.tensor([1, 2], dtype=torch.int64),
        "data/empty": torch.zeros(0, 3),
        "data/thin": torch.from_numpy(np.zeros((3, 0), np.int64)),
        "data/one": torch.ones(3).to(torch.bfloat16)[:1].expand(1),
        "data/stride": torch.tensor([7]).as_strided((1,), (0,)),
        "data/scalar": torch.tensor(True),
    }
    checkpoint.write(tmp_path / "m.ctsattn", {"x": {"y": [1, None, "ü"]}}, tensors)
    header, found = checkpoint.read(tmp_path / "m.ctsattn")
    assert header["x"] == {"y": [1, None, "ü"]}
    assert header["schema_version"] == checkpoint.SCHEMA_VERSION
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype
    assert load_file(tmp_path / "m.ctsattn").keys() == tensors.keys()  # any safetensors reader can read it


def test_a_wrong_path_says_so_and_creates_nothing(tmp_path):
    for path in (tmp_path / "none", tmp_path / "no" / "folder", tmp_path):
        with pytest.raises(ValueError, match="No model at"):
            checkpoint.read(path)
        with pytest.raises(FileNotFoundError):
            checkpoint.read(path)
    with pytest.raises(ValueError, match="does not exist, so nothing was saved"):
        checkpoint.write(tmp_path / "no" / "m.ctsattn", {}, {})
    with pytest.raises(ValueError, match="is a folder, but a model is saved as one file"):
        checkpoint.write(tmp_path, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_crash_while_saving_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "m.ctsattn"
    checkpoint.write(path, {"n": 1}, {"a": torch.ones(3)})

    def half(tensors, name, metadata):
        save_file(tensors, name, metadata=metadata)
        with open(name, "rb+") as file:
            file.truncate(20)
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint, "save_file", half)
    with pytest.raises(OSError, match="disk full"):
        checkpoint.write(path, {"n": 2}, {"a": torch.zeros(3)})
    assert checkpoint.read(path)[0]["n"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["m.ctsattn"]


def test_the_file_is_complete_before_it_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "m.ctsattn"
    replace, seen = os.replace, []

    def spy(source, target):
        seen.append((checkpoint.read(source)[0]["n"], path.exists()))
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", spy)
    checkpoint.write(path, {"n": 3}, {"a": torch.ones(3)})
    assert seen == [(3, False)]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_a_pickle_is_refused_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(Bomb()))
    torch.save({"a": torch.ones(2)}, tmp_path / "m.pt")
    for name in ("m.pkl", "m.pt"):
        with pytest.raises(ValueError, match="is not a model file of ctsattn, or it is damaged"):
            checkpoint.read(name)
    assert not (tmp_path / "exploded").exists()


def test_foreign_arrays_and_damaged_files_are_told_apart(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "foreign")
    with pytest.raises(ValueError, match="holds arrays but no ctsattn model"):
        checkpoint.read(tmp_path / "foreign")
    checkpoint.write(tmp_path / "m", {}, {"a": torch.ones(200)})
    (tmp_path / "cut").write_bytes((tmp_path / "m").read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged"):
        checkpoint.read(tmp_path / "cut")


def test_an_unknown_schema_version_names_the_version_that_is_needed(tmp_path):
    header = json.dumps({"schema_version": 99, "ctsattn_version": "7.1.0"})
    save_file({"a": torch.ones(2)}, tmp_path / "new", metadata={"ctsattn": header})
    with pytest.raises(ValueError, match=r"schema version 99.*reads versions 1 and 2.*7\.1\.0"):
        checkpoint.read(tmp_path / "new")


def test_a_config_survives_json_by_its_name_in_the_table():
    table = {"config": Config}
    encoded = json.loads(json.dumps(checkpoint.encode_config(Config(8, (3,)), table)))
    assert checkpoint.decode_config(encoded, table) == Config(8, (3,))
    with pytest.raises(ValueError, match="no name leads back to its class"):
        checkpoint.encode_config(Config(), {})
    with pytest.raises(ValueError, match="needs the model 'config', but MODELS has 'other'"):
        checkpoint.decode_config(encoded, {"other": Config})
    with pytest.raises(ValueError, match="options unknown here: depth"):
        checkpoint.decode_config({"name": "config", "fields": {"depth": 1}}, table)


def test_lists_too_long_for_a_header_become_bytes():
    values = ["α", 1, None, {"x": [2.5]}]
    assert checkpoint.tensor_to_text(checkpoint.text_to_tensor(values)) == values


def test_options_that_are_numbers_of_numpy_go_through_fit_and_file(tmp_path, df):
    model = replace(TINY, d_model=np.int64(8), is_causal=np.bool_(True), linear_share=np.float32(0.5))
    training = replace(QUICK, max_steps=np.int64(1), learning_rate=np.float32(0.5))
    tiny(model=model, training=training).fit(df).save(tmp_path / "model")
    found = Forecaster.load(tmp_path / "model")
    assert found.model == replace(TINY, d_model=8, is_causal=True, linear_share=0.5)
    assert found.training == replace(QUICK, max_steps=1, learning_rate=0.5)
