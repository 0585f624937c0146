"""Outputs of the authors' public code on fixed inputs, which a test compares the mixers with.

    python -m experiments.operator.authors FOLDER tests/nn/authors.json

FOLDER holds three files from the authors' repositories: models/transformer_custom.py of
EdoardoCalvello/TransformerNeuralOperators (commit a546ae0), models/s4/s4d.py of state-spaces/s4 (e757cef),
and mnist.py of declare-lab/EFLA (6d6590c). fla-core and einops must be installed, in an environment of their
own: their code runs here and stays out of this project.
"""

from __future__ import annotations

import ast
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LENGTH, WIDTH, STATES = 7, 4, 3


def waves(*shape: int, seed: float) -> Tensor:
    """Numbers between -1 and 1 that depend on no generator, float64."""
    count = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(seed + 1.7 * count + 0.3 * torch.sqrt(1 + count)).reshape(shape)


def inputs() -> dict[str, Tensor]:
    """The inputs of all comparisons."""
    q, k, v = (waves(1, 1, LENGTH, WIDTH, seed=seed) for seed in (0.1, 0.7, 1.9))
    return {
        "q": q,
        "k": k,
        "v": v,
        "times": waves(LENGTH, seed=0.4).abs().add(0.2).cumsum(0),
        "rate": waves(1, 1, LENGTH, seed=2.2).sigmoid(),
        "log_step": waves(WIDTH, seed=3.1) - 1.5,
        "read": waves(WIDTH, STATES, 2, seed=0.9),
        "u": waves(1, WIDTH, LENGTH, seed=1.1),
    }


def take(path: Path, name: str, **scope: Any) -> Any:
    """A class of a file, without running the rest of the file."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    names = {"torch": torch, "nn": nn, "F": F, "math": math, **scope}
    exec(compile(tree, str(path), "exec"), names)
    return names[name]


def continuum_attention(folder: Path, x: dict[str, Tensor]) -> Tensor:
    """Attention by the trapezoid rule, as Calvello et al. have it."""
    attention = take(folder / "transformer_custom.py", "ScaledDotProductAttention")(WIDTH, 0.0).double()
    attention.scale.data.copy_(torch.tensor([WIDTH], dtype=torch.float64).sqrt())
    return attention(x["q"], x["k"], x["v"], x["times"].reshape(-1, 1, 1))


def s4d(folder: Path, x: dict[str, Tensor]) -> Tensor:
    """Output of S4D's kernel, convolved with the inputs, as Gu et al. have it."""
    from einops import repeat

    kernel = take(folder / "s4d.py", "S4DKernel", repeat=repeat)(WIDTH, 2 * STATES).double()
    kernel.log_dt.data.copy_(x["log_step"])
    kernel.C.data.copy_(x["read"])
    taps = kernel(LENGTH)
    spectra = (torch.fft.rfft(series, n=2 * LENGTH) for series in (x["u"], taps))
    return torch.fft.irfft(math.prod(spectra), n=2 * LENGTH)[..., :LENGTH]


def delta_rule(x: dict[str, Tensor]) -> Tensor:
    """The delta rule of fla-core, token by token, in float32."""
    from fla.ops.delta_rule.naive import delta_rule_recurrence

    k = F.normalize(x["k"], dim=-1)
    return delta_rule_recurrence(x["q"], k, x["v"], x["rate"])[0]


def exact_flow(folder: Path, x: dict[str, Tensor]) -> Tensor:
    """EFLA, token by token: its classifier with everything but the attention replaced by the identity."""
    torch.set_default_dtype(torch.float64)
    outputs = []
    for length in range(1, LENGTH + 1):
        kind = take(folder / "mnist.py", "LinearAttentionClassifier", DIM=WIDTH, SEQ_LEN=length)
        model = kind("efla")
        for part, number in (("q_proj", 0), ("k_proj", 1), ("v_proj", 2), ("beta_proj", 3)):
            setattr(model, part, Part(number))
        for part in ("input_proj", "act", "norm", "classifier"):
            setattr(model, part, nn.Identity())
        model.pos_emb = nn.Parameter(torch.zeros(1))
        rate = torch.logit(x["rate"][0, 0, :length, None])
        # the query that is read at the end is not normalised there, so it comes normalised
        q = F.normalize(x["q"][0, 0, :length], dim=-1)
        outputs.append(
            model(torch.cat([q, x["k"][0, 0, :length], x["v"][0, 0, :length], rate], dim=-1)[None])
        )
    torch.set_default_dtype(torch.float32)
    return torch.stack(outputs, dim=1)[None]


class Part(nn.Module):
    """A stretch of the features: query, key, value or rate."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        """Take it from `x` `[..., 3 * WIDTH + 1]`."""
        return x[..., self.number * WIDTH : (self.number + 1) * WIDTH]


def main() -> int:
    """Run the authors' code and keep its outputs."""
    folder, target, x = Path(sys.argv[1]), Path(sys.argv[2]), inputs()
    with torch.no_grad():
        found = {
            "continuum_attention": continuum_attention(folder, x),
            "s4d": s4d(folder, x),
            "delta_rule": delta_rule(x),
            "exact_flow": exact_flow(folder, x),
        }
    import fla

    made = {
        "command": "python -m experiments.operator.authors FOLDER tests/nn/authors.json",
        "versions": f"torch {torch.__version__}, fla-core {fla.__version__}",
        "outputs": {name: value.double().tolist() for name, value in found.items()},
    }
    target.write_text(json.dumps(made, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
