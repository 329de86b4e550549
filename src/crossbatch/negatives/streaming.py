"""`StreamingFrequency`: log q learned from the batches themselves, for data without counts.

loss_fn = CrossBatchSoftmax(dim=64, item_counts=StreamingFrequency(buckets=2**20))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable

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
