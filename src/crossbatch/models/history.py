"""Histories as tensors of item ids: `[B, L]` int64, oldest first, 0 = padding on the right."""

import torch
from torch import Tensor

from .row_noise import uniform_rows


def drop_positions(history: Tensor, rate: float) -> Tensor:
    """Forget each item of each history with probability `rate`, but never a whole history.

    The items that stay keep their order and move to the left, so that the result is a
    right-padded history again.

    Args:
        history: `[B, L]`.
        rate: In [0, 1).

    Returns:
        `[B, L]`.
    """
    kept = blank_positions(history, rate)
    order = torch.argsort((kept == 0).to(torch.int8), dim=1, stable=True)
    return kept.gather(1, order)


def blank_positions(history: Tensor, rate: float) -> Tensor:
    """As `drop_positions`, but what stays does not move: for towers that know no order."""
    noise = uniform_rows(history.shape, history.device)
    noise = noise.masked_fill(history == 0, -1.0)
    # The largest draw of a row always stays: it is the likeliest survivor anyway.
    keep = (noise >= rate) | (noise == noise.amax(dim=1, keepdim=True))
    return history * keep
