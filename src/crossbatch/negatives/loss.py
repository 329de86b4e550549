"""`sampled_softmax_loss`: cross-entropy over sampled item columns (Eqs. 1-4 and 9).

One function serves every strategy, because strategies differ only in the columns they pass:

    loss = sampled_softmax_loss(u, positives, negatives=positives)                 # in-batch, Eq. 3
    loss = sampled_softmax_loss(u, positives, negatives=positives + bank.read())   # CBNS, Eq. 9
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch

from crossbatch.negatives.fused import FusedLosses
from crossbatch.negatives.masks import MASKS
from crossbatch.negatives.streamed import StreamedLosses

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.candidates import Candidates

Reduction = Literal["mean", "sum", "none"]


class NonFiniteLossError(ValueError):
    """A loss that is NaN or infinite; the message says which argument brought it."""


def sampled_softmax_loss(
    users: Tensor,
    positives: Candidates,
    negatives: Candidates,
    *,
    temperature: float | Tensor = 1.0,
    reduction: Reduction = "mean",
    mask: str = "both",
    exclude: Tensor | None = None,
    chunk_size: int | None = None,
) -> Tensor:
    """Softmax cross-entropy of each row's positive against shared negative columns.

        s'(u, i) = u·v_i / temperature − log q(i)
        loss_r   = −s'(u_r, r) + log( e^{s'(u_r, r)} + Σ_{j: id_j ≠ id_r} e^{s'(u_r, j)} )

    The correction is subtracted from *every* column, the positive included, after the temperature
    has divided the score: a constant factor on q cancels, and log q is never scaled. Columns that
    carry the row's own id have probability exactly 0. Logits and their log-sum-exp are float32 (or
    float64 for float64 input) whatever autocast says.

    Args:
        users: `[B, d]` user vectors.
        positives: B columns, row r's positive at position r.
        negatives: N columns shared by all rows; may contain the positives themselves. Cached parts
            are constants: they cost one `p @ bank` for the user side and no graph.
        temperature: Divides the score; a tensor is learned.
        reduction: `"mean"`, `"sum"` or `"none"` (`[B]`).
        mask: Which columns with the row's own id are left out: `"both"` batch and bank, `"batch"`
            (bank copies stay), or `"none"` (only the row's own column is left out).
        exclude: `[B, N]` bool, True for columns to leave out of a row as well, such as the user's
            other positives.
        chunk_size: Work through the columns this many at a time and recompute probabilities in the
            backward pass: memory is `[B, chunk_size]` however many columns there are.

    Returns:
        Scalar, or `[B]` for `reduction="none"`.
    """
    check_softmax_options(temperature, mask, chunk_size)
    _check(users, positives, negatives, reduction, exclude)
    # Upcast first: the quotient of a 16-bit vector would be rounded again, or overflow.
    queries = users.to(torch.promote_types(users.dtype, torch.float32))  # [B, d]
    if isinstance(temperature, torch.Tensor) or temperature != 1:
        queries = queries / temperature
    mean = reduction == "mean"
    if torch.compiler.is_compiling() and chunk_size is None:
        losses = row_losses(queries, positives, negatives, mask=mask, exclude=exclude)
        losses = losses.mean() if mean else losses
    else:
        losses = _fused(queries, positives, negatives, mask, exclude, chunk_size, mean)
    return losses.sum() if reduction == "sum" else losses


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _fused(
    queries: Tensor,
    positives: Candidates,
    negatives: Candidates,
    mask: str,
    exclude: Tensor | None,
    chunk_size: int | None,
    mean: bool,
) -> Tensor:
    if chunk_size is None:
        losses = FusedLosses.run(queries, positives, negatives, mask, exclude, mean=mean)
    else:
        losses = StreamedLosses.run(queries, positives, negatives, mask, exclude, chunk_size)
        losses = losses.mean() if mean else losses
    if not math.isfinite(float(losses.detach() if mean else losses.detach().sum())):
        raise NonFiniteLossError(blame(queries, positives, negatives))
    return losses


def row_losses(
    users: Tensor,
    positives: Candidates,
    negatives: Candidates,
    *,
    mask: str = "both",
    exclude: Tensor | None = None,
) -> Tensor:
    """The definition, in plain autograd: `[B]` losses.

    `FusedLosses` computes the same at the cost of the columns that need a gradient. This form is
    what `torch.compile` traces, and what tests hold the other against.
    """
    dtype = torch.promote_types(users.dtype, torch.float32)
    with torch.autocast(users.device.type, enabled=False):
        u = users.to(dtype)
        own = (u * positives.embeddings.to(dtype)).sum(dim=1) - positives.log_q  # [B]
        vectors = [
            part.embeddings.detach() if part.cached else pushed(part) for part in negatives.parts
        ]
        logits = torch.cat([u @ block.to(dtype).T for block in vectors], dim=1) - negatives.log_q
        row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
        dropped = row_keys.unsqueeze(1) == column_keys  # [B, N]
        if exclude is not None:
            dropped = dropped | exclude
        logits = logits.masked_fill(dropped, float("-inf"))
        return torch.cat([own.unsqueeze(1), logits], dim=1).logsumexp(dim=1) - own


def pushed(columns: Candidates) -> Tensor:
    """The vectors `[N, d]`, whose gradient is multiplied by `columns.push` on its way back."""
    v = columns.embeddings
    return v if columns.push == 1 else v.detach() + columns.push * (v - v.detach())


def check_softmax_options(temperature: float | Tensor, mask: str, chunk_size: int | None) -> None:
    """Raise `ValueError` for options that no softmax can honour."""
    if isinstance(temperature, (int, float)) and not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if isinstance(temperature, torch.Tensor) and temperature.numel() != 1:
        raise ValueError(
            f"temperature must be one number, got a tensor of shape {list(temperature.shape)}"
        )
    if mask not in MASKS:
        raise ValueError(f"mask must be one of {', '.join(MASKS)}, got {mask!r}")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1 or None, got {chunk_size}")


def _check(
    users: Tensor,
    positives: Candidates,
    negatives: Candidates,
    reduction: str,
    exclude: Tensor | None,
) -> None:
    if users.dim() != 2 or not users.is_floating_point():
        raise ValueError(
            "users must be a floating-point tensor of shape [B, d], got "
            f"{users.dtype} of shape {list(users.shape)}"
        )
    if users.shape[0] != len(positives):
        raise ValueError(
            f"positives must hold one column per user, {users.shape[0]}, got {len(positives)}"
        )
    if users.shape[0] == 0:
        raise ValueError("users are empty; skip the batch")
    for name, columns in (("positives", positives), ("negatives", negatives)):
        if columns.dim != users.shape[1]:
            raise ValueError(
                f"{name} have dimension {columns.dim}, users {users.shape[1]}; "
                "both towers must end in the same dimension"
            )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if exclude is not None:
        expected = (users.shape[0], len(negatives))
        if exclude.dtype != torch.bool or exclude.shape != expected:
            raise ValueError(
                f"exclude must be a bool tensor of shape {list(expected)}, one column per "
                f"negative, got {exclude.dtype} of shape {list(exclude.shape)}"
            )


def blame(queries: Tensor, positives: Candidates, negatives: Candidates) -> str:
    """Name the argument that made the loss non-finite."""
    named = {
        "users": queries,
        "positives.embeddings": positives.embeddings,
        "positives.log_q": positives.log_q,
        "negatives.embeddings": negatives.embeddings,
        "negatives.log_q": negatives.log_q,
    }
    for name, value in named.items():
        broken = int((~torch.isfinite(value)).sum())
        if broken:
            return (
                f"{name} hold {broken} values that are not finite, so the loss is not either; "
                "lower the learning rate or look at the inputs of this batch"
            )
    largest = float(queries.detach().abs().max())
    return (
        f"the logits overflow (largest user coordinate over temperature {largest:.3g}); "
        "lower the learning rate or raise the temperature"
    )
