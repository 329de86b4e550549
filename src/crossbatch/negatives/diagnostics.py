"""Diagnostics of a batch's softmax: numbers that predict whether its negatives help or do harm.

diagnose(users, positives, negatives)["effective_negatives"]
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import torch

from crossbatch.negatives.candidates import Candidates
from crossbatch.negatives.cross_batch import balanced
from crossbatch.negatives.loss import sampled_softmax_loss
from crossbatch.negatives.masks import MASKS
from crossbatch.queries import Queries, weights_of

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.negatives.memory_bank import MemoryBank
    from crossbatch.negatives.samplers import ItemEncoder

# Cached rows re-encoded to measure staleness.
STALENESS_ROWS = 64


def diagnose(
    users: Tensor | Queries,
    positives: Candidates,
    negatives: Candidates,
    *,
    temperature: float = 1.0,
    mask: str = "both",
    item_gradient: str = "paper",
) -> dict[str, float]:
    """Measure one batch.

    Args:
        users: `[B, d]`, or `Queries` of B users.
        positives: The batch's positives.
        negatives: The columns that the loss saw.
        temperature: As given to the loss.
        mask: As given to the loss.
        item_gradient: As given to the sampler; only `gradient_ratio` depends on it.

    Returns:
        negatives_per_row: Mean number of columns that count as negatives.
        masked_share: Share of columns left out as copies of the row's positive.
        effective_negatives: exp of the entropy of the softmax over negatives: how many of them act.
        hardness: Mean of the largest negative logit minus the positive's; above 0 the row is wrong.
        bank_mass_share: Share of the negatives' softmax mass that lies in cached columns.
        item_norm: Mean length of the batch's item vectors.
        mean_direction_share: Length of the mean of the unit item vectors; 1 is collapse.
        gradient_ratio: Norm of the loss gradient at the items over that at the users.
    """
    with torch.no_grad():
        u, v = users.detach().float(), positives.embeddings.detach().float()
        own = _own_scores(u, v, temperature) - positives.log_q
        row_keys, column_keys = MASKS[mask](positives.item_ids, negatives)
        masked = row_keys.unsqueeze(1) == column_keys  # [B, N]
        columns = negatives.embeddings.detach().float()
        scores = _scores(u, columns, temperature) - negatives.log_q
        scores = scores.masked_fill(masked, float("-inf"))
        keep = ~masked.all(dim=1)  # a row without negatives has no softmax over them
        log_p = scores[keep].log_softmax(dim=1)
        p = log_p.exp()
        entropy = -(p * log_p.masked_fill(p == 0, 0.0)).sum(dim=1)
        cached = torch.cat(
            [torch.full((len(part),), part.cached, device=v.device) for part in negatives.parts]
        )
        directions = torch.nn.functional.normalize(v, dim=1)
        return {
            "negatives_per_row": float((~masked).sum(dim=1).float().mean()),
            "masked_share": float(masked.float().mean()) if masked.numel() else 0.0,
            "effective_negatives": _mean(entropy.exp()),
            "hardness": _mean(scores[keep].amax(dim=1) - own[keep]) if keep.any() else 0.0,
            "bank_mass_share": _mean((p * cached).sum(dim=1)),
            "item_norm": float(v.norm(dim=1).mean()),
            "mean_direction_share": float(directions.mean(dim=0).norm()),
            "gradient_ratio": _gradient_ratio(
                u, positives, negatives, temperature, mask, item_gradient
            ),
        }


def diagnose_bank(
    bank: MemoryBank, positives: Candidates, encode: ItemEncoder | None = None
) -> dict[str, float]:
    """Fill, age and staleness of a bank.

    Args:
        bank: The bank, after the batch was enqueued.
        positives: The batch that was enqueued last.
        encode: Item tower, to re-encode a few cached items. Without it, staleness is measured on
            items that happen to be in the batch and in older rows of the bank.

    Returns:
        bank_fill: Written rows.
        bank_mean_age: Mean number of iterations since a row was written.
        bank_staleness: Mean of ‖cached − fresh‖ / ‖fresh‖; NaN if nothing could be compared.
    """
    rows, ages = bank.read(), bank.ages()
    if encode is None:
        match = rows.item_ids.unsqueeze(1) == positives.item_ids  # [M, B]
        match &= (ages > 0).unsqueeze(1)
        sample, column = match.nonzero(as_tuple=True)
        fresh = positives.embeddings.detach()[column]
    else:
        spread = torch.linspace(0, len(rows) - 1, min(len(rows), STALENESS_ROWS))
        sample = spread.long().to(rows.item_ids.device)
        with torch.no_grad():
            fresh = encode(rows.item_ids[sample])
    gap = (rows.embeddings[sample].float() - fresh.float()).norm(dim=1)
    relative = gap / fresh.float().norm(dim=1).clamp(min=1e-12)
    return {
        "bank_fill": float(len(rows)),
        "bank_mean_age": _mean(ages.float()),
        "bank_staleness": float(relative.mean()) if relative.numel() else float("nan"),
    }


def _scores(u: Tensor | Queries, items: Tensor, temperature: float) -> Tensor:
    """`[B, N]` scores of item vectors `[N, d]`."""
    if isinstance(u, Queries):
        return Queries(u.vectors / temperature, u.log_weights).scores(items)
    return u @ items.T / temperature


def _own_scores(u: Tensor | Queries, items: Tensor, temperature: float) -> Tensor:
    """`[B]` score of each row's own item, of items `[B, d]`."""
    if isinstance(u, Queries):
        each = torch.einsum("bkd,bd->bk", u.vectors, items) / temperature
        return (each + u.log_weights).logsumexp(dim=1)
    return (u * items).sum(dim=1) / temperature


def _gradient_ratio(
    u: Tensor | Queries,
    positives: Candidates,
    negatives: Candidates,
    temperature: float,
    mask: str,
    item_gradient: str,
) -> float:
    """Re-run the loss on leaves of its own: the caller's graph is not touched."""
    with torch.enable_grad():
        vectors = weights_of(u)[0].detach().requires_grad_()
        users = Queries(vectors, u.log_weights) if isinstance(u, Queries) else vectors
        items = positives.embeddings.detach().float().requires_grad_()
        own = Candidates(items, positives.item_ids, positives.log_q)
        num_cached = sum(len(part) for part in negatives.parts if part.cached)
        batch = own if item_gradient == "paper" else balanced(own, num_cached)
        parts = [
            batch if torch.equal(part.item_ids, positives.item_ids) else part.detached()
            for part in negatives.parts
        ]
        columns = reduce(Candidates.__add__, parts)
        loss = sampled_softmax_loss(users, own, columns, temperature=temperature, mask=mask)
        user_side, item_side = torch.autograd.grad(loss, (vectors, items))
    return float(item_side.norm() / user_side.norm().clamp(min=1e-12))


def _mean(values: Tensor) -> float:
    return float(values.mean()) if values.numel() else 0.0
