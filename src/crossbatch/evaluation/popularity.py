"""How popular an item was in training: cold, tail, mid or head."""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BANDS = ("cold", "tail", "mid", "head")


def popularity_bands(item_counts: npt.ArrayLike | Tensor) -> np.ndarray:
    """Band of each item of `[num_items + 1]` training frequencies, as in `Popularity`; int8."""
    counts = np.asarray(item_counts)[1:]
    order = np.argsort(-counts, kind="stable")
    sums = np.cumsum(counts[order])  # whole numbers, so exact
    total = sums[-1] if len(sums) else 0
    before = sums - counts[order]  # interactions that fall on more popular items; ascending
    starts = np.searchsorted(3 * before, [0, total, 2 * total])
    band = np.full(len(counts) + 1, BANDS.index("cold"), dtype=np.int8)
    for name, start in zip(("head", "mid", "tail"), starts, strict=True):
        band[1 + order[start:]] = BANDS.index(name)
    band[1:][counts == 0] = BANDS.index("cold")
    band[0] = -1
    return band


@dataclass(frozen=True, slots=True)
class Popularity:
    """Popularity of each item id, from training counts.

    Bands: `cold` items never occur in training; the others, from the most popular down, are cut
    where a third and two thirds of all training interactions are reached, so that head, mid and
    tail stand for equal shares of the traffic.
    """

    counts: Tensor  # [num_items + 1] training frequencies; 0 for padding
    band: Tensor  # [num_items + 1] index into BANDS; −1 for padding
    rank: Tensor  # [num_items + 1] share of items that are more popular (ties: mid-rank), in (0, 1)

    @classmethod
    def from_counts(cls, item_counts: npt.ArrayLike | Tensor) -> Self:
        """Build from `[num_items + 1]` training frequencies; entry 0 is padding."""
        counts = np.asarray(item_counts, dtype=np.float64)[1:]
        _, inverse, ties = np.unique(-counts, return_inverse=True, return_counts=True)
        rank = (np.cumsum(ties) - ties / 2)[inverse] / max(len(counts), 1)
        return cls(
            counts=torch.from_numpy(np.concatenate([[0.0], counts])),
            band=torch.from_numpy(popularity_bands(item_counts).astype(np.int64)),
            rank=torch.from_numpy(np.concatenate([[0.0], rank])),
        )

    @property
    def num_items(self) -> int:
        """Number of items, padding not counted."""
        return len(self.band) - 1
