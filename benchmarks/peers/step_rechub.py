"""torch-rechub: `DSSM` with its trainer's in-batch negatives, and `MIND` with list-wise negatives.

Both are stepped by `MatchTrainer.train_one_epoch` on one batch from the library's own data loader,
with its default optimiser (Adam over whole tables). `MIND` has ids only and negatives of each
sample's own: as many as a batch of 128 shares, or 1280.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch_rechub.basic.features import SequenceFeature, SparseFeature
from torch_rechub.models.matching import DSSM, MIND
from torch_rechub.trainers import MatchTrainer
from torch_rechub.utils.data import TorchDataset

from peers.samples import BATCH_SIZE, DIM, HIDDEN, NEGATIVES, Samples
from peers.serve import Step, serve

DIMS = [HIDDEN, DIM]


def endless(columns: dict[str, np.ndarray]) -> Iterator[Any]:
    """The library's data set, one sample a call, as its `DataGenerator` loads it."""
    count = len(columns["item"])
    dataset = TorchDataset(columns, np.zeros(count))
    while True:
        yield from DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, drop_last=True)


def item_features(samples: Samples) -> tuple[SparseFeature, SequenceFeature]:
    rows = samples.num_items + 1
    item = SparseFeature("item", rows, embed_dim=DIM, padding_idx=0)
    history = SequenceFeature(
        "history", rows, embed_dim=DIM, pooling="mean", shared_with="item", padding_idx=0
    )
    return item, history


def dssm(samples: Samples) -> Step:
    item, history = item_features(samples)
    category = SparseFeature("category", samples.num_categories, embed_dim=DIM)
    categories = SequenceFeature(
        "categories",
        samples.num_categories,
        embed_dim=DIM,
        pooling="mean",
        shared_with="category",
        padding_idx=0,
    )
    model = DSSM([history, categories], [item, category], {"dims": DIMS}, {"dims": DIMS})
    trainer = MatchTrainer(model, mode=2, in_batch_neg=True)
    batches = endless(
        {
            "history": samples.history,
            "categories": samples.categories[samples.history],
            "item": samples.items,
            "category": samples.categories[samples.items],
        }
    )
    return lambda: trainer.train_one_epoch([next(batches)])


def mind(samples: Samples, count: int) -> Step:
    item, history = item_features(samples)
    rows = samples.num_items + 1
    history.pooling = "concat"
    user = SparseFeature("user", 2, embed_dim=DIM)  # the model requires one
    others = SequenceFeature("negatives", rows, embed_dim=DIM, pooling="concat", shared_with="item")
    model = MIND([user], [history], [item], [others], max_length=samples.history.shape[1])
    trainer = MatchTrainer(model, mode=2)
    rng = np.random.default_rng(0)
    batches = endless(
        {
            "history": samples.history,
            "item": samples.items,
            "user": np.ones(len(samples.items), dtype=np.int64),
        }
    )

    def step() -> None:
        columns, labels = next(batches)
        drawn = rng.integers(1, rows, size=(BATCH_SIZE, count))
        trainer.train_one_epoch([(columns | {"negatives": torch.from_numpy(drawn)}, labels)])

    return step


def main() -> None:
    torch.set_num_threads(1)
    samples = Samples.from_command_line()
    rows = {
        "torch-rechub DSSM, in-batch": partial(dssm, samples),
        "torch-rechub MIND, 127 negatives": partial(mind, samples, BATCH_SIZE - 1),
        "torch-rechub MIND, 1280 negatives": partial(mind, samples, NEGATIVES),
    }
    serve(rows, ("torch-rechub", "torch", "numpy"))


if __name__ == "__main__":
    main()
