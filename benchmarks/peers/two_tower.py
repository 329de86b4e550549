"""The benchmark's two towers in plain PyTorch, as one would write them from the documentation."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from peers.samples import BATCH_SIZE, DIM, HIDDEN, Samples


class TwoTower(nn.Module):
    """Id and category vectors of items, or their mean over the history → MLP."""

    def __init__(self, samples: Samples, *, sparse: bool) -> None:
        super().__init__()
        rows = samples.num_items + 1
        self.ids = nn.Embedding(rows, DIM, padding_idx=0, sparse=sparse)
        self.categories = nn.Embedding(samples.num_categories, DIM, sparse=sparse)
        self.user = nn.Sequential(nn.Linear(2 * DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        self.item = nn.Sequential(nn.Linear(2 * DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        self.category_of = torch.from_numpy(samples.categories)

    def users(self, history: Tensor) -> Tensor:
        """`[B, L]` → `[B, d]`."""
        real = (history != 0).unsqueeze(2)
        mean = (self.joined(history) * real).sum(dim=1) / real.sum(dim=1)
        vectors: Tensor = self.user(mean)
        return vectors

    def items(self, ids: Tensor) -> Tensor:
        """`[N]` → `[N, d]`."""
        vectors: Tensor = self.item(self.joined(ids))
        return vectors

    def joined(self, ids: Tensor) -> Tensor:
        """`[*]` → `[*, 2 d]`."""
        return torch.cat([self.ids(ids), self.categories(self.category_of[ids])], dim=-1)


def optimizers(model: TwoTower, *, sparse: bool) -> list[torch.optim.Optimizer]:
    """Adam for everything, or `SparseAdam` for the tables and Adam for the rest."""
    if not sparse:
        return [torch.optim.Adam(model.parameters())]
    layers = [*model.user.parameters(), *model.item.parameters()]
    tables = [model.ids.weight, model.categories.weight]
    return [torch.optim.SparseAdam(tables), torch.optim.Adam(layers)]


def loaded(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    """Histories and positives without end, each batch indexed at once: `DataLoader` at its best."""
    dataset = TensorDataset(*(torch.from_numpy(a) for a in (samples.history, samples.items)))
    order = BatchSampler(RandomSampler(dataset), BATCH_SIZE, drop_last=True)
    loader = DataLoader(dataset, sampler=order, batch_size=None)
    while True:
        yield from loader


def negatives(samples: Samples, rng: np.random.Generator, count: int) -> Tensor:
    """`[count]` ids, uniform over the catalogue."""
    return torch.from_numpy(rng.integers(1, samples.num_items + 1, size=count))
