"""Linear recurrences along a sequence whose steps differ, as irregular gaps make them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def linear_scan(decay: Tensor, inputs: Tensor) -> Tensor:
    r"""Run $x_i = d_i x_{i-1} + b_i$ from $x_{-1} = 0$, elementwise.

    The sequence is cut into about $\sqrt{n}$ blocks that run side by side, then the states at their ends are
    handed on, so that $2\sqrt{n}$ steps in a row do for $n$.

    Args:
        decay: $d$, real or complex, `[batch, length, ...]`.
        inputs: $b$, of the same shape.

    Returns:
        $x$, of the same shape.
    """
    length = inputs.shape[1]
    block = max(1, math.isqrt(length))
    missing = -length % block
    if missing:
        padding = (0, 0) * (inputs.dim() - 2) + (0, missing)
        decay, inputs = pad(decay, padding), pad(inputs, padding)
    decay, inputs = (x.unflatten(1, (-1, block)) for x in (decay, inputs))
    inside, reach = _run(decay, inputs)
    ends, state = [torch.zeros_like(inside[:, 0, -1])], torch.zeros_like(inside[:, 0, -1])
    for i in range(inside.shape[1] - 1):
        state = reach[:, i, -1] * state + inside[:, i, -1]
        ends.append(state)
    before = torch.stack(ends, dim=1).unsqueeze(2)
    return (inside + reach * before).flatten(1, 2)[:, :length]


def _run(decay: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """States of each block from 0, and what is left in each place of the state before the block."""
    state, left = inputs[:, :, 0], decay[:, :, 0]
    states, lefts = [state], [left]
    for i in range(1, inputs.shape[2]):
        state = decay[:, :, i] * state + inputs[:, :, i]
        left = decay[:, :, i] * left
        states.append(state)
        lefts.append(left)
    return torch.stack(states, dim=2), torch.stack(lefts, dim=2)


def delta_scan(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, chunk: int = 32) -> Tensor:
    r"""Run the delta rule $S_i = S_{i-1} + \alpha_i k_i (v_i - S_{i-1}^\top k_i)^\top$, read $S_i^\top q_i$.

    Within a chunk the state is $S_0 + \sum_j k_j w_j^\top$, where the corrections solve the unit lower
    triangular system $w_i + \alpha_i \sum_{j<i} (k_i \cdot k_j)\, w_j = \alpha_i (v_i - S_0^\top k_i)$.

    Args:
        q: `[batch, heads, length, key_dim]`.
        k: `[batch, heads, length, key_dim]`.
        v: `[batch, heads, length, value_dim]`.
        strength: $\alpha$, `[batch, heads, length]`; 0 leaves the state as it is.
        chunk: Length of a chunk; changes the speed, not the result.

    Returns:
        `[batch, heads, length, value_dim]` in the dtype of `v`.

    References:
        Yang et al., "Parallelizing linear transformers with the delta rule over sequence length" (2024).
    """
    length, dtype = v.shape[2], v.dtype
    chunk = min(chunk, length)
    wide = torch.promote_types(dtype, torch.float32)
    missing = -length % chunk
    q, k, v = (pad(x.to(wide), (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for x in (q, k, v))
    alpha = pad(strength.to(wide), (0, missing)).unflatten(2, (-1, chunk)).unsqueeze(-1)
    # [batch, heads, chunks, chunk, chunk]
    system = (alpha * (k @ k.mT)).tril(-1)
    both = torch.linalg.solve_triangular(
        system, alpha * torch.cat([k, v], dim=-1), upper=False, unitriangular=True
    )
    from_state, from_values = both.split([k.shape[-1], v.shape[-1]], dim=-1)
    scores = (q @ k.mT).tril()
    state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    outputs = []
    for i in range(k.shape[2]):
        correction = from_values[:, :, i] - from_state[:, :, i] @ state
        outputs.append(q[:, :, i] @ state + scores[:, :, i] @ correction)
        state = state + k[:, :, i].mT @ correction
    return torch.cat(outputs, dim=2)[:, :, :length].to(dtype)
