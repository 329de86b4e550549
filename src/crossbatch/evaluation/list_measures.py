"""Measures of lists that look at no targets: how popular, novel and diverse what is listed is.

    VectorDiversity(item_vectors)(ranked)       # ranked [U, k] item ids, 0 for an empty slot -> [U]

Diversity is 1 − the mean cosine of all pairs of items of a list: 0 if all are alike. Of unit
vectors v the pairs need not be visited: Σ_{i ≠ j} vᵢ·vⱼ = ‖Σ vᵢ‖² − Σ ‖vᵢ‖².
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.data import Feature
from crossbatch.evaluation.neighbours import expand

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


ListMeasure = Callable[[Tensor], Tensor]

CHUNK = 256  # users whose items' vectors are gathered at once
SETS = ("categorical", "multi_valued")


class CorpusTally:
    """What the lists of all users look like together, counted batch by batch."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity
        self.shown = torch.zeros(popularity.num_items + 1, dtype=torch.long)  # times recommended

    def add(self, ranked: Tensor) -> None:
        """Count `[B, k]` recommended ids."""
        self.shown += ranked.reshape(-1).bincount(minlength=len(self.shown))

    def read(self) -> dict[str, float]:
        """Return the measures; NaN where nothing was recommended.

        `coverage`: share of the catalogue that was recommended to at least one user.
        `popularity_rank`: mean over recommended places of the share of items more popular than the
        one recommended (0.5 = no preference, near 0 = only hits). `head_share`, `cold_share`: share
        of the places given to items of that band.
        """
        shown = self.shown[1:].double()
        places = shown / shown.sum()  # NaN throughout if there is no place
        band = self.popularity.band[1:]
        return {
            "coverage": float((shown > 0).double().mean()),
            "popularity_rank": float(places @ self.popularity.rank[1:]),
            "head_share": float(places[band == BANDS.index("head")].sum()),
            "cold_share": float(places[band == BANDS.index("cold")].sum()),
        }


class Novelty:
    """Mean self-information of a list's items, as a share of the largest possible.

    An item with c of all C training interactions counts −log2(c / C) / log2(C); one without counts
    as if it had one.
    """

    def __init__(self, item_counts: npt.ArrayLike | Tensor) -> None:
        counts = torch.as_tensor(np.asarray(item_counts), dtype=torch.float64)
        total = counts[1:].sum().clamp(min=2)
        self.information = 1 - counts.clamp(min=1).log2() / total.log2()  # [num_items + 1]

    def __call__(self, ranked: Tensor) -> Tensor:
        """NaN for an empty list."""
        there = ranked > 0
        return (self.information[ranked] * there).sum(dim=1) / there.sum(dim=1)


class Diversity(ABC):
    """1 − the mean cosine of all pairs of a list's items; NaN for a list of less than two."""

    def __call__(self, ranked: Tensor) -> Tensor:
        """`[U, k]` → `[U]`."""
        sums = [self.pairs(part) for part in ranked.split(CHUNK)]
        size = (ranked > 0).sum(dim=1).double()
        mean = (torch.cat(sums) if sums else torch.zeros(0)) / (size * (size - 1))
        return torch.where(size > 1, 1 - mean, torch.nan)

    @abstractmethod
    def pairs(self, ranked: Tensor) -> Tensor:
        """Σ of the cosines of all ordered pairs: `[b, k]` → `[b]`, float64."""


class VectorDiversity(Diversity):
    """Diversity by item vectors `[num_items + 1, d]`: a model's own view of what is alike."""

    def __init__(self, vectors: Tensor) -> None:
        self.unit = torch.nn.functional.normalize(vectors.float(), dim=1)

    def pairs(self, ranked: Tensor) -> Tensor:
        """As in `Diversity`, without a visit to each pair."""
        vectors = self.unit[ranked].double() * (ranked > 0).unsqueeze(2)  # [b, k, d]
        return vectors.sum(dim=1).square().sum(dim=1) - vectors.square().sum(dim=(1, 2))


class ContentDiversity(Diversity):
    """Diversity by content: cosines of the items' values, averaged over features.

    A categorical or multi-valued feature (hashed words of a text among them) is the set of its
    values, a dense one its vector. An item without a value is like no other. Numeric features and
    tokens are left out. The same for every model, so that lists can be compared.
    """

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self.parts: list[Callable[[Tensor], Tensor]] = []
        for feature in features.values():
            if feature.kind in SETS:
                self.parts.append(_SetPairs(feature))
            elif feature.kind == "dense":
                vectors = torch.from_numpy(np.asarray(feature.values, dtype=np.float32))
                self.parts.append(VectorDiversity(vectors).pairs)

    def pairs(self, ranked: Tensor) -> Tensor:
        """The mean over features."""
        return torch.stack([part(ranked) for part in self.parts]).mean(dim=0)


class _SetPairs:
    """Σ of the cosines of all ordered pairs of a list's items, as sets of values."""

    def __init__(self, feature: Feature) -> None:
        values = np.asarray(feature.values, dtype=np.int64)
        offsets = feature.offsets
        if offsets is None:
            offsets = np.arange(len(values) + 1)
        rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        known = values > 0 if feature.offsets is None else np.ones(len(values), dtype=bool)
        keys = np.unique(rows[known] * feature.num_values + values[known])  # each value once
        rows, self.values = np.divmod(keys, feature.num_values)
        self.num_values = feature.num_values
        self.offsets = np.searchsorted(rows, np.arange(len(offsets)))

    def __call__(self, ranked: Tensor) -> Tensor:
        """`[b, k]` → `[b]`, float64."""
        b, k = ranked.shape
        items = ranked.numpy().ravel()
        starts, ends = self.offsets[items], self.offsets[items + 1]
        ends = np.where(items > 0, ends, starts)
        entries, source = expand(starts, ends)
        weights = 1 / np.sqrt(np.maximum(ends - starts, 1))[source]
        keys, place = np.unique(
            (source // k) * self.num_values + self.values[entries], return_inverse=True
        )
        sums = np.bincount(place, weights, minlength=len(keys))
        squares = np.bincount(keys // self.num_values, sums**2, minlength=b)
        own = (ends > starts).reshape(b, k).sum(axis=1)  # each item's cosine with itself
        return torch.from_numpy(squares - own)
