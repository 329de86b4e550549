"""How likely is an item to be drawn? Estimates of q, and the log-space table that serves them.

Three estimates, each a valid `Corpus.item_counts` (any constant factor cancels in the softmax):

    Corpus(item_frequency(items, num_items), dim)         # "item frequency": the paper's words
    Corpus(sampler_law(offsets, items, num_items), dim)   # what in-batch positives really follow
    Corpus(no_correction(num_items), dim)                 # q constant: no correction at all

`StreamingFrequency` learns log q from the batches themselves, for data without counts:

    loss_fn = CrossBatchSoftmax(dim=64, item_counts=StreamingFrequency(buckets=2**20))
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossbatch.negatives.candidates import check_counts

if TYPE_CHECKING:
    from collections.abc import Callable


def check_ids(name: str, item_ids: Tensor, lowest: int, highest: int) -> None:
    """Raise `ValueError` unless `item_ids` are int64 within the bounds."""
    if item_ids.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {item_ids.dtype}; convert them with .long()")
    if item_ids.numel() == 0:
        return
    first, last = (int(bound) for bound in item_ids.aminmax())
    if first < lowest or last > highest:
        raise ValueError(
            f"{name} must lie between {lowest} and {highest}, got {first} to {last}; "
            "item_counts needs one entry per item"
        )


def item_frequency(items: Tensor, num_items: int) -> Tensor:
    """Count each item of the training log: q(i) ∝ number of interactions.

    Args:
        items: `[T]` item ids of all training interactions.
        num_items: Largest id.

    Returns:
        `[num_items + 1]` int64 counts; row 0 (padding) is 0.
    """
    check_ids("items", items, 0, num_items)
    counts = torch.bincount(items, minlength=num_items + 1)
    counts[0] = 0
    return counts


def sampler_law(
    offsets: Tensor, items: Tensor, num_items: int, *, min_history: int = 1, sample_by: str = "user"
) -> Tensor:
    """Exact sampling distribution of an in-batch positive.

    By `"user"`, a batch draws users uniformly, then one target position of each user uniformly, so
    heavy users count less than in the raw frequency; by `"interaction"` it draws all target
    positions alike:

        by user:         q(i) = 1/U · Σ_u #{k ≥ m : item k of u is i} / (L_u − m)
        by interaction:  q(i) = Σ_u #{k ≥ m : item k of u is i} / Σ_u (L_u − m)

    where m is `min_history`.

    Args:
        offsets: `[U + 1]` where each user's sequence starts in `items` (CSR).
        items: `[T]` item ids, chronological within a user.
        num_items: Largest id.
        min_history: Number of leading items that are never a target.
        sample_by: `"user"` or `"interaction"`.

    Returns:
        `[num_items + 1]` float64 probabilities; items that are never a target have 0.
    """
    check_ids("items", items, 0, num_items)
    if sample_by not in ("user", "interaction"):
        raise ValueError(f"sample_by must be user or interaction, got {sample_by!r}")
    if int(offsets[0]) != 0 or int(offsets[-1]) != items.shape[0]:
        raise ValueError(
            f"offsets must run from 0 to the number of items, {items.shape[0]}, got "
            f"{int(offsets[0])} to {int(offsets[-1])}"
        )
    lengths = offsets.diff()
    targets_per_user = (lengths - min_history).clamp(min=0)
    num_users = int((targets_per_user > 0).sum())
    if num_users == 0:
        raise ValueError(
            f"no sequence is longer than min_history={min_history}; lower it or keep longer users"
        )
    position = torch.arange(items.shape[0]) - offsets[:-1].repeat_interleave(lengths)
    by_user = sample_by == "user"
    weight = 1.0 / targets_per_user.clamp(min=1).double() if by_user else torch.ones(len(lengths))
    weights = weight.double().repeat_interleave(lengths) * (position >= min_history)
    totals = torch.zeros(num_items + 1, dtype=torch.float64).index_add_(0, items, weights)
    return totals / (num_users if by_user else int(targets_per_user.sum()))


def no_correction(num_items: int) -> Tensor:
    """Constant q, which cancels in the softmax. Row 0 is padding.

    Returns:
        `[num_items + 1]` ones with a leading 0.
    """
    counts = torch.ones(num_items + 1, dtype=torch.int64)
    counts[0] = 0
    return counts


class LogFrequency(nn.Module):
    """Table of log q, computed in log space from counts and never clipped.

    Clipping q at 1e-6, as some libraries do, gives every item with fewer than nine of nine million
    interactions the same correction. A zero count has no finite correction, so asking for such an
    item is an error and not a silent `inf`.

    Args:
        item_counts: `[R]` counts or probabilities; ids index it directly.
    """

    log_q: Tensor

    def __init__(self, item_counts: Tensor) -> None:
        super().__init__()
        check_counts(item_counts)
        if not bool((item_counts > 0).any()):
            raise ValueError("item_counts are all zero; count the items of the training part")
        counts = item_counts.double()
        log_q = (counts.log() - counts.sum().log()).float()
        # Derived from the data, not learned: a checkpoint need not carry a catalogue-sized table.
        self.register_buffer("log_q", log_q, persistent=False)

    def forward(self, item_ids: Tensor) -> Tensor:
        """`[N]` log q of `item_ids` `[N]`."""
        if torch.compiler.is_compiling():  # value checks would break the graph
            return self.log_q[item_ids]
        log_q = self._looked_up(item_ids)
        # One small operation: a sum is −inf if a term is, and no term is +inf.
        if float(log_q.sum()) == -math.inf:
            unseen = int(item_ids[torch.isinf(log_q)][0])
            raise ValueError(
                f"item_ids hold {unseen}, whose count is 0, so log q is -inf; count the items of "
                "the data that you train on"
            )
        return log_q

    def _looked_up(self, item_ids: Tensor) -> Tensor:
        if item_ids.is_cpu and item_ids.dtype == torch.int64 and item_ids.dim() == 1:
            try:  # this look-up checks bounds by itself; the text of the complaint is ours
                return self.log_q.index_select(0, item_ids)
            except IndexError:
                pass
        check_ids("item_ids", item_ids, 0, self.log_q.shape[0] - 1)
        return self.log_q[item_ids]

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> LogFrequency:
        log_q = self.log_q
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # Follows the device, never the precision: 8 bits cannot tell rare items apart.
        self.log_q = log_q.to(self.log_q.device)
        return self


# Odd multipliers of a multiplicative hash in wrapping 64-bit arithmetic; one row of the table each.
MULTIPLIERS = (0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9, 0x14D049BB133111EB, 0x2545F4914F6CDD1D)


class StreamingFrequency(nn.Module):
    """How often an item is a positive, estimated from the gaps between its occurrences.

    Yi et al. (2019) average the number of batches between two occurrences of an item and take the
    inverse as its probability. A batch may hold an item c times, so that estimate saturates at one
    per batch. Here both sides are averaged, each time that the item comes, with the same weights:

        rows ← rows + a (rows since it last came − rows)        hits ← hits + a (c − hits)
        q    = hits / rows

    In the long run hits → E[c | c > 0] and rows → n / P(c > 0) for batches of n rows, so
    q → E[c] / n exactly, for rare and frequent items alike. The k-th time `a` is max(rate, 1/k): a
    plain mean at first, then one that follows drifting popularity over the last 1/rate occurrences.

    Ids are hashed into `tables` rows of `buckets`. Two items in one bucket look more frequent than
    they are, so the smallest estimate counts: it is wrong only if an item meets others in every
    table. The cost is that of the batch, whatever the number of items.

    State is in buffers. `observe` is called in training with the ids of each batch, after `forward`
    was called with them.

    Args:
        buckets: Cells of a table; a few times the number of items, or of those that matter.
        tables: Hash functions, 1 to 4.
        rate: Weight of the newest occurrence once there are more than 1/rate.
    """

    rows: Tensor  # [tables, buckets] mean number of rows between occurrences
    hits: Tensor  # [tables, buckets] mean number of occurrences when there are any
    seen: Tensor  # [tables, buckets] times that the cell was hit
    last: Tensor  # [tables, buckets] value of `clock` then
    clock: Tensor  # rows so far
    multipliers: Tensor  # [tables, 1]

    def __init__(self, buckets: int = 2**20, *, tables: int = 2, rate: float = 0.01) -> None:
        super().__init__()
        if buckets < 1:
            raise ValueError(f"buckets must be at least 1, got {buckets}")
        if not 1 <= tables <= len(MULTIPLIERS):
            raise ValueError(f"tables must be 1 to {len(MULTIPLIERS)}, got {tables}")
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, got {rate}")
        self.buckets, self.rate = buckets, rate
        for name, dtype in (("rows", torch.float32), ("hits", torch.float32)):
            self.register_buffer(name, torch.zeros(tables, buckets, dtype=dtype))
        for name in ("seen", "last"):
            self.register_buffer(name, torch.zeros(tables, buckets, dtype=torch.int64))
        self.register_buffer("multipliers", torch.tensor(MULTIPLIERS[:tables])[:, None])
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))

    def forward(self, item_ids: Tensor) -> Tensor:
        """`[N]` log q of `item_ids` `[N]`; an item that never came counts as one that comes now."""
        cells = self._cells(item_ids)  # [tables, N]
        rows, hits = self.rows.gather(1, cells), self.hits.gather(1, cells)
        q = torch.where(rows > 0, hits / rows, 1.0 / (self.clock + item_ids.shape[0]))
        return q.amin(dim=0).log()

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def observe(self, item_ids: Tensor) -> None:
        """Take note of a batch of positives `[B]`."""
        self.clock += item_ids.shape[0]
        for table, cells in enumerate(self._cells(item_ids)):
            touched, counts = cells.unique(return_counts=True)
            seen = self.seen[table, touched] + 1
            weight = (1.0 / seen).clamp(min=self.rate)
            gap = (self.clock - self.last[table, touched]).float()
            self.rows[table, touched] += weight * (gap - self.rows[table, touched])
            self.hits[table, touched] += weight * (counts - self.hits[table, touched])
            self.seen[table, touched] = seen
            self.last[table, touched] = self.clock

    def _cells(self, item_ids: Tensor) -> Tensor:
        """`[tables, N]` bucket of each id: the high bits of a wrapping product are well mixed."""
        mixed = item_ids * self.multipliers
        return ((mixed >> 20) ^ (mixed >> 42)) % self.buckets

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> StreamingFrequency:
        kept = {name: getattr(self, name) for name in ("rows", "hits")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, value in kept.items():  # follows the device, never the precision
            setattr(self, name, value.to(getattr(self, name).device))
        return self
