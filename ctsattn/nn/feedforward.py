"""Position-wise feed-forward networks."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from ctsattn.nn.dropout import Dropout


class SwiGLU(nn.Module):
    r"""Gated feed-forward network $W_o(\mathrm{silu}(W_g x) \odot W_u x)$.

    Args:
        d_model: Features of a token.
        d_ff: Hidden width that a plain network would have; the gated one gets two thirds of it, which costs
            the same number of parameters.
        dropout: Share of hidden features dropped in training.

    References:
        Shazeer, "GLU variants improve transformer" (2020).
    """

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        hidden = max(1, 2 * d_ff // 3)
        self.gate_up = nn.Linear(d_model, 2 * hidden)
        self.down = nn.Linear(hidden, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` `[..., d_model]` to the same shape."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(self.dropout(F.silu(gate) * up))


class GELUNetwork(nn.Module):
    """Plain feed-forward network with one hidden layer and GELU; arguments as in `SwiGLU`."""

    def __init__(self, d_model: int, d_ff: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` `[..., d_model]` to the same shape."""
        return self.down(self.dropout(F.gelu(self.up(x))))


FEEDFORWARDS: dict[str, type[nn.Module]] = {"swiglu": SwiGLU, "gelu": GELUNetwork}
