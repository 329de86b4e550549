"""A toy model and toy batches with the structure evaluation asks for, and nothing more."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ToyBatch:
    user_ids: Tensor
    history: Tensor
    target_ids: Tensor
    target_offsets: Tensor


class ToyTowers(nn.Module):
    """K interests: mean of the history's vectors, plus a learned offset each."""

    def __init__(self, num_items: int, dim: int = 6, interests: int = 1, dropout: float = 0.0):
        super().__init__()
        self.table = nn.Embedding(num_items + 1, dim)
        self.offsets = nn.Parameter(torch.randn(interests, dim))
        self.dropout = nn.Dropout(dropout)
        self.frozen = nn.Dropout(dropout).eval()
        self.register_buffer("seen_in_training", torch.zeros(1))

    def users(self, history: Tensor, user_ids: Tensor | None = None) -> Tensor:
        if self.training:
            self.seen_in_training += 1
        mask = (history > 0).unsqueeze(-1)
        pooled = (self.table(history) * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
        return self.dropout(pooled.unsqueeze(1) + self.offsets)

    def items(self, item_ids: Tensor) -> Tensor:
        return self.dropout(self.table(item_ids))


def batches_of(rows: list[tuple[list[int], list[int]]], batch_size: int = 4, length: int = 5):
    """Rows of (history, targets) → batches."""
    for start in range(0, len(rows), batch_size):
        part = rows[start : start + batch_size]
        history = torch.tensor([(h + [0] * length)[:length] for h, _ in part])
        lengths = torch.tensor([0] + [len(t) for _, t in part])
        flat = [item for _, targets in part for item in targets]
        yield ToyBatch(
            user_ids=torch.arange(start, start + len(part)),
            history=history,
            target_ids=torch.tensor(flat, dtype=torch.long),
            target_offsets=lengths.cumsum(0),
        )


class ToyDataset:
    """Training sequences, and rows of (history, targets) for every split."""

    def __init__(self, sequences, num_items, rows=()):
        self.num_items = num_items
        self.sequences = sequences
        self.rows = rows
        flat = [item for sequence in sequences for item in sequence]
        self.item_counts = np.bincount(flat, minlength=num_items + 1)

    def train_sequences(self):
        offsets = np.cumsum([0] + [len(s) for s in self.sequences])
        flat = [item for sequence in self.sequences for item in sequence]
        return offsets, np.array(flat, dtype=np.int32)

    def eval_batches(self, split, **options):
        return batches_of(list(self.rows))


def histories_batch(histories, length=6):
    history = torch.tensor([(h + [0] * length)[:length] for h in histories])
    return ToyBatch(torch.arange(len(histories)), history, torch.tensor([]), torch.tensor([0]))


@pytest.fixture
def toy_rows():
    """23 users with histories of 1-5 items and 1-4 targets among 60 items, some repeated."""
    generator = torch.Generator().manual_seed(7)

    def draw(low, high):
        n = int(torch.randint(low, high + 1, (1,), generator=generator))
        return torch.randint(1, 61, (n,), generator=generator).tolist()

    rows = [(draw(1, 5), draw(1, 4)) for _ in range(22)]
    return [*rows, ([3, 4], [4, 4, 9])]
