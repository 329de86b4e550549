"""`sampled_softmax_loss`: cross-entropy over sampled item columns (Eqs. 1-4 and 9).

One function serves every strategy, because strategies differ only in the columns they pass:

    loss = sampled_softmax_loss(u, positives, negatives=positives)                 # in-batch, Eq. 3
    loss = sampled_softmax_loss(u, positives, negatives=positives + bank.read())   # CBNS, Eq. 9
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, cast

import torch

from crossbatch.kernels.sampled_softmax import definition, sampled_softmax
from crossbatch.kernels.softmax_blocks import Columns
from crossbatch.negatives.masks import MASKS
from crossbatch.queries import Queries

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.candidates import Candidates

Reduction = Literal["mean", "sum", "none"]


class NonFiniteLossError(ValueError):
    """A loss that is NaN or infinite; the message says which argument brought it."""


def sampled_softmax_loss(
    users: Tensor | Queries,
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

    A user of several weighted queries scores an item by all of them: in the place of
    u·v_i / temperature stands log Σ_k exp(log_weights_k + vectors_k·v_i / temperature).

    Args:
        users: `[B, d]` user vectors, or `Queries` of B users.
        positives: B columns, row r's positive at position r.
        negatives: N columns shared by all rows; may contain the positives themselves. Cached parts
            are constants: they cost one product for the user side and no graph.
        temperature: Divides the score; a tensor is learned.
        reduction: `"mean"`, `"sum"` or `"none"` (`[B]`).
        mask: Which columns with the row's own id are left out: `"both"` batch and bank, `"batch"`
            (bank copies stay), or `"none"` (only the row's own column is left out).
        exclude: `[B, N]` bool, True for columns to leave out of a row as well, such as the user's
            other positives.
        chunk_size: Hold at most B · chunk_size scores in memory at a time, however many columns
            there are, by working through the rows in blocks.

    Returns:
        Scalar, or `[B]` for `reduction="none"`.
    """
    check_softmax_options(temperature, mask, chunk_size)
    _check(users, positives, negatives, reduction, exclude)
    users = _divided(users, temperature)
    if torch.compiler.is_compiling():
        losses = row_losses(users, positives, negatives, mask=mask, exclude=exclude)
        return losses.mean() if reduction == "mean" else _reduced(losses, reduction)
    vectors, log_weights, stops = _flat(users)
    rows = None if chunk_size is None else max(1, len(users) * chunk_size // max(len(negatives), 1))
    losses = sampled_softmax(
        _columns(positives, negatives, mask, exclude),
        vectors,
        positives.embeddings,
        _live_vectors(negatives),
        log_weights,
        stops,
        mean=reduction == "mean",
        block_rows=rows,
    )
    if not math.isfinite(losses.item() if reduction == "mean" else losses.detach().sum().item()):
        raise NonFiniteLossError(explain_non_finite(vectors, positives, negatives))
    return _reduced(losses, reduction)


def _divided(users: Tensor | Queries, temperature: float | Tensor) -> Tensor | Queries:
    """Users divided by the temperature."""
    if isinstance(users, Queries):
        vectors = cast("Tensor", _divided(users.vectors, temperature))
        return Queries(vectors, users.log_weights)
    # Upcast first: the quotient of a 16-bit vector would be rounded again, or overflow.
    users = users.to(torch.promote_types(users.dtype, torch.float32))
    learned = isinstance(temperature, torch.Tensor)
    return users / temperature if learned or temperature != 1 else users


def _flat(users: Tensor | Queries) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Queries `[P, d]` of all users end to end, log-weights `[P]`, and `[B]` where each user's end.

    The last two are None where every user has one.
    """
    if not isinstance(users, Queries):
        return users, None, None
    present = users.log_weights > -math.inf  # [B, K]
    per_user = present.sum(dim=1)
    if not bool(per_user.all()):
        raise ValueError(
            f"user {int((per_user == 0).nonzero()[0])} has no query, for all its log_weights are "
            "-inf; leave the row out of the batch"
        )
    where = present.flatten().nonzero().squeeze(1)  # [P]
    vectors = users.vectors.flatten(0, 1).index_select(0, where)
    return vectors, users.log_weights.flatten()[where], per_user.cumsum(dim=0)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.sum() if reduction == "sum" else losses


def _columns(
    positives: Candidates, negatives: Candidates, mask: str, exclude: Tensor | None
) -> Columns:
    """The arguments of `sampled_softmax_loss` as the operation takes them."""
    row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
    return Columns(
        negatives.log_q.detach(),
        positives.log_q.detach(),
        row_keys,
        column_keys,
        exclude,
        _own_column(positives, negatives),
        tuple([part.push for part in negatives.parts]),
    )


def _own_column(positives: Candidates, negatives: Candidates) -> int | None:
    """Where the positives begin among the negatives; None if they are not there as they stand."""
    start = 0
    for part in negatives.parts:
        if part is positives and not part.cached:
            return start
        start += part.item_ids.shape[0]
    return None


def _live_vectors(negatives: Candidates) -> list[Tensor]:
    """The vectors of each part; those of cached parts as constants, unless they are live."""
    return [part.embeddings if part.live else part.embeddings.detach() for part in negatives.parts]


def row_losses(
    users: Tensor | Queries,
    positives: Candidates,
    negatives: Candidates,
    *,
    mask: str = "both",
    exclude: Tensor | None = None,
) -> Tensor:
    """The definition, in plain autograd: `[B]` losses.

    The operation `sampled_softmax` computes the same at the cost of the columns that need a
    gradient. This form is what `torch.compile` traces, and what tests compare the other with.
    """
    vectors, log_weights, stops = _flat(users)
    return definition(
        _columns(positives, negatives, mask, exclude),
        vectors,
        positives.embeddings,
        _live_vectors(negatives),
        log_weights,
        stops,
    )


def check_softmax_options(temperature: float | Tensor, mask: str, chunk_size: int | None) -> None:
    """Raise `ValueError` for options that no softmax can honour."""
    if not isinstance(temperature, (int, float, torch.Tensor)):
        raise ValueError(f"temperature must be a number or a tensor, got {temperature!r}")
    if not isinstance(temperature, torch.Tensor) and not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    if isinstance(temperature, torch.Tensor) and temperature.numel() != 1:
        raise ValueError(
            f"temperature must be one number, got a tensor of shape {list(temperature.shape)}"
        )
    if not isinstance(mask, str) or mask not in MASKS:
        raise ValueError(f"mask must be one of {', '.join(MASKS)}, got {mask!r}")
    if chunk_size is not None and (not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(f"chunk_size must be at least 1 or None, got {chunk_size!r}")


def _check(
    users: Tensor | Queries,
    positives: Candidates,
    negatives: Candidates,
    reduction: str,
    exclude: Tensor | None,
) -> None:
    vectors = users.vectors if isinstance(users, Queries) else users
    if not isinstance(users, Queries) and (users.dim() != 2 or not users.is_floating_point()):
        raise ValueError(
            "users must be a floating-point tensor of shape [B, d], got "
            f"{users.dtype} of shape {list(users.shape)}"
        )
    if len(users) != len(positives):
        raise ValueError(
            f"positives must hold one column per user, {len(users)}, got {len(positives)}"
        )
    if len(users) == 0:
        raise ValueError("users are empty; skip the batch")
    for name, columns in (("positives", positives), ("negatives", negatives)):
        if columns.dim != vectors.shape[-1]:
            raise ValueError(
                f"{name} have dimension {columns.dim}, users {vectors.shape[-1]}; "
                "both towers must end in the same dimension"
            )
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")
    if exclude is not None:
        expected = (len(users), len(negatives))
        if exclude.dtype != torch.bool or exclude.shape != expected:
            raise ValueError(
                f"exclude must be a bool tensor of shape {list(expected)}, one column per "
                f"negative, got {exclude.dtype} of shape {list(exclude.shape)}"
            )


def explain_non_finite(queries: Tensor, positives: Candidates, negatives: Candidates) -> str:
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
