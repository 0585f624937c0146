"""Each field of each model either refuses a value by its name, in time, or builds a network that works."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ctsattn import Forecaster
from ctsattn._options import check_options
from ctsattn.losses import masked_mean
from ctsattn.models import MODELS, ContinuousTransformer
from tests.models.batches import SPEC, make_batch

SMALL = {"d_model": 8, "num_layers": 1, "num_heads": 2}
GIVEN = [
    object(), None, True, "nonsense", "", (), (1,), {}, -1, 0, 1, 1.5, -0.5, 0.5, 1.0,
    np.int64(2), np.float32(0.5), math.nan, math.inf, -math.inf,
]  # fmt: skip


def small(name: str) -> Any:
    kind = MODELS[name]
    return kind(**SMALL) if issubclass(kind, ContinuousTransformer) else kind()


FIELDS = [(name, field.name) for name in MODELS for field in fields(MODELS[name])]


def works(config: Any) -> None:
    network, batch = config.build(SPEC), make_batch()
    loss = masked_mean(network.head.loss(network(batch), batch.future_values), batch.future_observed)
    assert loss.isfinite()
    if network.trainable:
        loss.backward()
    assert network.eval()(batch).isfinite().all()


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_value_is_refused_by_name_or_works(name, field):
    refused = 0
    for value in GIVEN:
        config = replace(small(name), **{field: value})
        try:
            check_options(config, "model")
        except ValueError as error:
            refused += 1
            said = str(error)
            assert said.startswith(f"`{type(config).__name__}.{field}` must be ")
            assert f"Write set_params(model__{field}=" in said
            continue
        try:
            works(config)
        except ValueError as error:  # what hangs on other fields or on the task is told by the network
            assert f"`{field}`" in str(error)
    assert refused >= 10


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_the_value_that_the_message_names_mends_it(name, field):
    forecaster = Forecaster(model=replace(small(name), **{field: object()}))
    with pytest.raises(ValueError, match=f"set_params.model__{field}=") as caught:
        forecaster.fit(None)
    mended = str(caught.value).partition("Write ")[2].rpartition(")")[0] + ")"
    eval(mended, {"set_params": forecaster.set_params})
    check_options(forecaster.config, "model")


@pytest.mark.parametrize("method", ["fit", "partial_fit", "cross_validation"])
def test_options_are_checked_before_any_data_is_read(method):
    with pytest.raises(ValueError, match=r"`ContinuousTransformer.patch` must be .*\"auto\" or None, but it"):
        getattr(Forecaster(model=ContinuousTransformer(patch=0)), method)(None)


def test_a_config_of_the_callers_own_is_asked_what_it_says_and_no_more():
    class Local:
        pass

    @dataclass(frozen=True)
    class Own:
        width: int = 3
        part: Local | None = None
        scaler: str = "standard"

        def build(self, spec: Any) -> nn.Module:
            return torch.nn.Identity()

    check_options(Own(width="wide"), "model")  # its annotations cannot be read outside this function


def test_a_network_and_a_seed_are_no_config():
    check_options(3, "model")
    check_options(torch.nn.Identity(), "model")
