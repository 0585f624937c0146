"""Mixers against the outputs of their authors' public code on the same inputs, kept in authors.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ctsattn.nn import MIXERS, MixerConfig
from ctsattn.nn.mixers.base import Heads
from ctsattn.nn.mixers.delta import exact_flow_strength
from ctsattn.nn.mixers.ssm import zero_order_hold
from ctsattn.ops.scan import delta_scan, linear_scan
from experiments.operator.authors import WIDTH, inputs


@pytest.fixture(scope="module")
def x() -> dict[str, Tensor]:
    return inputs()


@pytest.fixture(scope="module")
def theirs() -> dict[str, Tensor]:
    found = json.loads((Path(__file__).parent / "authors.json").read_text())["outputs"]
    return {name: torch.tensor(value, dtype=torch.float64) for name, value in found.items()}


def test_trapezoid_is_the_continuum_attention_of_its_authors(x, theirs):
    mixer = MIXERS["trapezoid"](MixerConfig(WIDTH, num_heads=1)).double()
    ours = mixer.attend(Heads(x["q"], x["k"], x["v"], x["times"][None]), is_causal=False)
    torch.testing.assert_close(ours, theirs["continuum_attention"], rtol=1e-12, atol=1e-13)


def test_zero_order_hold_on_unit_gaps_is_the_kernel_of_s4d(x, theirs):
    states = x["read"].shape[1]
    rate = torch.complex(torch.full((states,), -0.5).double(), torch.pi * torch.arange(states).double())
    steps = x["log_step"].exp()[:, None].expand(1, x["u"].shape[-1], WIDTH, 1)
    run = linear_scan(*zero_order_hold(steps * rate, steps, x["u"].mT.unsqueeze(-1)))
    ours = 2 * (run * torch.view_as_complex(x["read"])).real.sum(-1).mT
    # the authors compute the rates in float32
    torch.testing.assert_close(ours, theirs["s4d"], rtol=1e-6, atol=1e-7)


def test_delta_rule_is_that_of_fla(x, theirs):
    ours = delta_scan(x["q"], F.normalize(x["k"], dim=-1), x["v"], x["rate"]) * WIDTH**-0.5
    torch.testing.assert_close(ours, theirs["delta_rule"], rtol=1e-5, atol=1e-6)


def test_exact_flow_on_unit_gaps_is_that_of_its_authors(x, theirs):
    norm = x["k"].square().sum(dim=-1)
    strength = exact_flow_strength(x["rate"], torch.ones_like(x["rate"]), norm)
    ours = delta_scan(F.normalize(x["q"], dim=-1), x["k"], x["v"], strength)
    # the authors add 1e-6 to the eigenvalue that they divide by
    torch.testing.assert_close(ours, theirs["exact_flow"], rtol=1e-5, atol=1e-5)
