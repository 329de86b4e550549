"""Measures of lists that look at no targets: novelty and intra-list diversity, per user.

    VectorDiversity(item_vectors)(ranked)       # ranked [U, k] item ids, 0 for an empty slot -> [U]

Diversity is 1 − the mean cosine of all pairs of items of a list: 0 if all are alike. Of unit
vectors v the pairs need not be visited: Σ_{i ≠ j} vᵢ·vⱼ = ‖Σ vᵢ‖² − Σ ‖vᵢ‖².
"""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossbatch.data import Feature
from crossbatch.evaluation.neighbours import expand

ListMeasure = Callable[[Tensor], Tensor]

CHUNK = 256  # users whose items' vectors are gathered at once
SETS = ("categorical", "multi_valued")


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


class VectorDiversity:
    """Diversity by item vectors `[num_items + 1, d]`: a model's own view of what is alike."""

    def __init__(self, vectors: Tensor) -> None:
        self.unit = torch.nn.functional.normalize(vectors.float(), dim=1)

    def __call__(self, ranked: Tensor) -> Tensor:
        """NaN for a list of less than two items."""
        pairs = [self._pairs(part) for part in ranked.split(CHUNK)]
        return _diversity(torch.cat(pairs) if pairs else torch.zeros(0), ranked)

    def _pairs(self, ranked: Tensor) -> Tensor:
        vectors = self.unit[ranked].double() * (ranked > 0).unsqueeze(2)  # [b, k, d]
        return vectors.sum(dim=1).square().sum(dim=1) - vectors.square().sum(dim=(1, 2))


class ContentDiversity:
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
                self.parts.append(VectorDiversity(vectors)._pairs)

    def __call__(self, ranked: Tensor) -> Tensor:
        """NaN for a list of less than two items."""
        pairs = [
            torch.stack([part(chunk) for part in self.parts]).mean(dim=0)
            for chunk in ranked.split(CHUNK)
        ]
        return _diversity(torch.cat(pairs) if pairs else torch.zeros(0), ranked)


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


def _diversity(pairs: Tensor, ranked: Tensor) -> Tensor:
    """1 − the mean cosine, from its sum over ordered pairs."""
    size = (ranked > 0).sum(dim=1).double()
    return torch.where(size > 1, 1 - pairs / (size * (size - 1)), torch.nan)
