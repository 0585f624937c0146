"""Delta-rule mixers: DeltaNet, which steps by tokens, and EFLA, which flows for real gaps."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.nn.mixers.base import MixerConfig
from ctsattn.nn.mixers.recurrent import Recurrence, RecurrentMixer
from ctsattn.ops.scan import delta_scan
from ctsattn.phi import phi1

_TAPS = 4  # width of the short convolutions


def exact_flow_strength(rate: Tensor, gaps: Tensor, squared_norm: Tensor) -> Tensor:
    r"""Strength of the delta rule that follows $\dot S = \beta k (v - S^\top k)^\top$ exactly for a gap.

    $k k^\top$ has one eigenvalue $\lambda = \|k\|^2$ that is not 0, hence
    $\alpha = (1 - e^{-\beta\lambda\Delta}) / \lambda = \beta\Delta\,\varphi_1(-\beta\lambda\Delta)$.

    Args:
        rate: $\beta \ge 0$.
        gaps: $\Delta \ge 0$.
        squared_norm: $\lambda \ge 0$.

    Returns:
        $\alpha$, of the shape that the arguments broadcast to.
    """
    step = rate * gaps
    return step * phi1(-step * squared_norm)


class DeltaRecurrence(Recurrence):
    """Queries, keys and values after short convolutions, and a rate for each token and head.

    Args:
        config: Sizes and units of the mixer.
        width: Features of the result.
        heads: Heads of the result.
    """

    def __init__(self, config: MixerConfig, width: int, heads: int) -> None:
        super().__init__(config, width, heads)
        self.project = nn.Linear(config.d_model, 3 * width, bias=False)
        self.short = nn.Conv1d(3 * width, 3 * width, _TAPS, groups=3 * width, bias=False)
        self.rate = nn.Linear(config.d_model, heads)
        self.norm = nn.LayerNorm(width // heads)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values `[batch, heads, length, head_dim]`, rates `[batch, heads, length]`."""
        mixed = F.silu(self.short(F.pad(self.project(x).mT, (_TAPS - 1, 0)))).mT
        q, k, v = mixed.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v, self.rate(x).sigmoid().transpose(1, 2)

    def finish(self, heads: Tensor) -> Tensor:
        """Normalise each head `[batch, heads, length, head_dim]` and join them."""
        return self.norm(heads.transpose(1, 2)).flatten(-2)


class DeltaStep(DeltaRecurrence):
    """One step of the delta rule for each token, whatever the gap; queries and keys have length 1."""

    def forward(self, x: Tensor, gaps: Tensor, mask: Tensor) -> Tensor:
        """Run over the tokens; see `Recurrence.forward`."""
        q, k, v, rate = self.parts(x)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        return self.finish(delta_scan(q, k, v, rate * mask[:, None]))


class DeltaFlow(DeltaRecurrence):
    """Exact flow of the delta rule for the real gap before each token; only queries have length 1."""

    def forward(self, x: Tensor, gaps: Tensor, mask: Tensor) -> Tensor:
        """Run over the tokens; see `Recurrence.forward`."""
        q, k, v, rate = self.parts(x)
        strength = exact_flow_strength(rate, (gaps * mask)[:, None], k.square().sum(dim=-1))
        return self.finish(delta_scan(F.normalize(q, dim=-1), k, v, strength))


class DeltaNet(RecurrentMixer):
    """The delta rule as a linear attention that overwrites; blind to time.

    References:
        Schlag, Irie and Schmidhuber, "Linear transformers are secretly fast weight programmers" (2021).
        Yang et al., "Parallelizing linear transformers with the delta rule over sequence length" (2024).
    """

    recurrence = DeltaStep


class EFLA(RecurrentMixer):
    """Exact flow linear attention with real gaps: two half gaps do what a whole one does.

    References:
        "Error-free linear attention is a free lunch: exact solution from continuous-time dynamics",
        arXiv 2512.12602.
    """

    recurrence = DeltaFlow
