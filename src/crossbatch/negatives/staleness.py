"""`DriftGauge`: how fast item vectors move, and so how many cached rows are still worth reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from crossbatch.negatives.candidates import Candidates
    from crossbatch.negatives.memory_bank import MemoryBank

MEASURE_EVERY = 10  # iterations; item vectors do not change their speed faster than that
DECAY = 0.8  # weight of earlier measurements after a new one


class DriftGauge(nn.Module):
    """Measures staleness on items that are in the batch and still in the bank: nothing is encoded.

    Such an item has a fresh vector v and a cached one v̂ of known age. The gauge keeps

        speed = Σ ‖v̂ − v‖ / ‖v‖  ÷  Σ age        (relative distance per iteration)

    over recent batches. Vectors that keep their direction of travel are `speed · age` away after
    `age` iterations, others less, so the newest `r` rows, of mean age r / 2B, are on average at
    most `speed · r / 2B` stale. Items that are often in a batch also move often, so the rest of the
    bank is fresher than what is measured: the gauge errs on the side of reading too little.

    State is in buffers: a resumed run reads as many rows as an unbroken one.
    """

    moved: Tensor  # Σ relative distance, older measurements weighted down
    aged: Tensor  # Σ age, likewise

    def __init__(self) -> None:
        super().__init__()
        for name in ("moved", "aged"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def observe(self, bank: MemoryBank, positives: Candidates) -> None:
        """Compare a batch with its items' rows in the bank, before it is enqueued itself."""
        if len(bank) == 0 or int(bank.step) % MEASURE_EVERY:
            return
        rows = bank.read()
        ids, order = positives.item_ids.sort()
        place = torch.searchsorted(ids, rows.item_ids).clamp_(max=len(ids) - 1)
        both = (ids[place] == rows.item_ids).nonzero().squeeze(1)
        fresh = positives.embeddings.detach()[order[place[both]]].float()
        gap = (rows.embeddings[both].float() - fresh).norm(dim=1)
        length = fresh.norm(dim=1).clamp(min=1e-12)
        # The rows of the last iteration have age 0 in the bank's count: one update ago.
        self.moved = DECAY * self.moved + (gap / length).double().sum()
        self.aged = DECAY * self.aged + (bank.ages()[both] + 1).double().sum()

    def readable_rows(self, limit: float, batch_size: int) -> int:
        """The most rows, newest first, that are on average at most `limit` stale.

        Nothing is readable before anything was measured.
        """
        aged, moved = float(self.aged), float(self.moved)
        if aged == 0:
            return 0
        iterations = 2 * limit * aged / max(moved, 1e-12)
        return int(min(iterations * batch_size, 2**31))
