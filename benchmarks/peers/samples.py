"""The samples that every library steps on: plain arrays, written once by `steps.py`.

Needs NumPy alone: peers have environments of their own, which have no crossbatch.
"""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# `steps_at_sizes.py` sets other sizes.
BATCH_SIZE, DIM = (
    int(os.environ.get(name, n)) for name, n in (("PEER_BATCH", 128), ("PEER_DIM", 64))
)
HIDDEN, NEGATIVES, CAPACITY = 128, 1280, 2432


@dataclass(frozen=True)
class Samples:
    """Training samples and the items' content.

    Attributes:
        history: `[n, L]` int64 item ids, oldest first, right-padded with 0.
        items: `[n]` int64 positives.
        categories: `[num_items + 1]` int64 category of each item.
    """

    history: np.ndarray
    items: np.ndarray
    categories: np.ndarray

    @classmethod
    def from_command_line(cls) -> "Samples":
        """Read the folder that `steps.py` names."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--samples", type=Path, required=True)
        folder = parser.parse_args().samples
        return cls(*(np.load(folder / f"{name}.npy") for name in cls.__annotations__))

    @property
    def num_items(self) -> int:
        """Ids run from 1 to this."""
        return len(self.categories) - 1

    @property
    def num_categories(self) -> int:
        """Values run from 0 to this, exclusive."""
        return int(self.categories.max()) + 1

    def batches(self, seed: int = 0) -> Iterator[np.ndarray]:
        """Row numbers `[B]` without end, in a new random order each time round."""
        rng = np.random.default_rng(seed)
        while True:
            order = rng.permutation(len(self.items))
            yield from order[: len(order) // BATCH_SIZE * BATCH_SIZE].reshape(-1, BATCH_SIZE)
