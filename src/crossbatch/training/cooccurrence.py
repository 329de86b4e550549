"""Item vectors to begin training with, counted from which items stand near each other.

    vectors = cooccurrence_vectors(*dataset.train_sequences(), num_items=dataset.num_items, dim=256)

With the correction by log q, the softmax drives the score of an item towards the pointwise mutual
information of history and item, log p(item | history) / q(item). Between two single items that
number can be counted: how often they stand within a few places of each other in a sequence, over
what their frequencies alone would give. The leading eigenvectors of its positive part are vectors
whose products come near it (Levy and Goldberg, 2014), and training continues from there instead of
from random vectors.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from crossbatch.models import EmbeddingTable, ItemTower
from crossbatch.training.threads import using

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset

WINDOW = 10  # places to either side that are near
DECAY = 0.2  # a pair counts e^(−DECAY) times as much with each place between its items
DOUBT = 1.0  # pairs of this weight count half: what was seen once may be chance
MOST_PAIRS, FEWEST = 20_000_000, 50  # pairs kept in all, but so many of each item at least
PAIRS = 1 << 20  # counted at once: bounds the working memory at some 50 MB
OVERSAMPLED, ROUNDS = 8, 3  # of the search for eigenvectors: further columns, and products
NOISE = 0.1  # length of a random part where there are fewer eigenvectors than dimensions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cooccurrence_vectors(
    offsets: npt.NDArray[np.integer],
    items: npt.NDArray[np.integer],
    *,
    num_items: int,
    dim: int,
    seed: int = 0,
) -> Tensor:
    """Unit vectors `[num_items + 1, dim]`, zeros for padding; random where nothing was counted.

    Args:
        offsets: `[U + 1]`; user u's sequence is `items[offsets[u]:offsets[u + 1]]`.
        items: Item ids of all sequences, oldest first.
        num_items: Ids run from 1 to this.
        dim: Length d of the vectors.
        seed: Of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    pairs = near_pairs(np.asarray(offsets, np.int64), np.asarray(items, np.int64), num_items)
    vectors = leading_vectors(pairs, dim, generator)
    noise = torch.randn(num_items + 1, dim, generator=generator) / dim**0.5
    counted = vectors.norm(dim=1, keepdim=True) > 0
    vectors, missing = normalize(vectors, dim=1), dim - vectors.shape[1]
    if missing:  # products of zeros would stay zero in training
        vectors = pad(vectors, (0, missing)) + NOISE * noise
    vectors = normalize(torch.where(counted, vectors, noise), dim=1)
    vectors[0] = 0
    return vectors


@dataclass(frozen=True, slots=True)
class Pairs:
    """A symmetric matrix `[n, n]` of zeros on the diagonal, by its entries above the diagonal."""

    n: int
    upper: Tensor  # sparse CSR
    lower: Tensor  # sparse CSR, its transpose

    def __matmul__(self, columns: Tensor) -> Tensor:
        return self.upper @ columns + self.lower @ columns


def near_pairs(offsets: Ints, items: Ints, num_items: int) -> Pairs:
    """The positive pointwise mutual information of items that stand near each other.

    Of large catalogues, pairs that are among the first of neither of their items are left out.
    """
    n = num_items + 1
    neighbours = max(FEWEST, MOST_PAIRS // n)
    by_distance = np.exp(-DECAY * np.arange(WINDOW))
    degrees = _degrees(offsets, items, n, by_distance)
    total, low, high, values = degrees.sum(), [], [], []
    for row, other, common in _counted(offsets, items, n, by_distance):
        information = np.log(common * total / (degrees[row] * degrees[other]))
        information *= common / (common + DOUBT)
        kept = np.flatnonzero(information > 0)
        row, other, information = row[kept], other[kept], information[kept]
        # Rows ascend: the sort stays within them.
        order = np.lexsort((other, -information, row))
        place = np.arange(len(row)) - np.searchsorted(row, row)
        order = order[place < neighbours]
        row, other = row[order], other[order]
        low.append(np.minimum(row, other).astype(np.int32))
        high.append(np.maximum(row, other).astype(np.int32))
        values.append(information[order].astype(np.float32))
    # A pair that both items keep is in the list twice, with the same value.
    first, second = (np.concatenate([np.empty(0, np.int32), *parts]) for parts in (low, high))
    keys, where = np.unique(first * np.int64(n) + second, return_index=True)
    value = np.concatenate([np.empty(0, np.float32), *values])[where]
    del low, high, values, first, second
    row, column = np.divmod(keys, n)
    turned = np.argsort(column, kind="stable")
    return Pairs(
        n, _csr(row, column, value, n), _csr(column[turned], row[turned], value[turned], n)
    )


def _degrees(offsets: Ints, items: Ints, n: int, by_distance: Floats) -> Floats:
    """`[n]` weights of all pairs that each item is in."""
    degrees, last = np.zeros(n), np.repeat(offsets[1:], np.diff(offsets))
    for distance, weight in enumerate(by_distance, start=1):
        near = np.flatnonzero(np.arange(len(items)) + distance < last)
        a, b = items[near], items[near + distance]
        differ = a != b
        degrees += weight * np.bincount(a[differ], minlength=n)
        degrees += weight * np.bincount(b[differ], minlength=n)
    return degrees


def _counted(
    offsets: Ints, items: Ints, n: int, by_distance: Floats
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield, for runs of items, pairs of them and other items, ascending, and their weights."""
    starts, lengths = offsets[:-1], np.diff(offsets)
    first, last = np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
    order = np.argsort(items, kind="stable")
    by_item = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n))])
    distances = np.concatenate([np.arange(-WINDOW, 0), np.arange(1, WINDOW + 1)])
    item = 0
    while item < n:
        until = np.searchsorted(by_item, by_item[item] + PAIRS // len(distances), side="right") - 1
        until = min(max(int(until), item + 1), n)
        places = order[by_item[item] : by_item[until]]
        others = places[:, None] + distances
        inside = (others >= first[places, None]) & (others < last[places, None])
        row, which = np.nonzero(inside)
        own, other = items[places[row]], items[others[inside]]
        distance = np.abs(distances[which]) - 1
        differ = own != other
        # As one number, which sorts faster; equal sets of distances have equal sums.
        keys = (own[differ] * n + other[differ]) * WINDOW + distance[differ]
        keys, distance = np.divmod(np.sort(keys), WINDOW)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        if len(begins):
            yield *np.divmod(keys[begins], n), np.add.reduceat(by_distance[distance], begins)
        item = until


def _csr(row: Ints, column: Ints, value: npt.NDArray[np.float32], n: int) -> Tensor:
    """The sparse matrix `[n, n]` of entries whose rows ascend."""
    ends = torch.from_numpy(np.searchsorted(row, np.arange(n + 1)))
    columns, values = torch.from_numpy(column), torch.from_numpy(value)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR", UserWarning)  # that it is in beta
        return torch.sparse_csr_tensor(ends, columns, values, (n, n), check_invariants=False)


def leading_vectors(pairs: Pairs, dim: int, generator: torch.Generator) -> Tensor:
    """Eigenvectors `[n, ≤ dim]` of the largest positive eigenvalues λ, the largest first, times √λ.

    Found by subspace iteration from random vectors.
    """
    width = min(dim + OVERSAMPLED, pairs.n)
    basis = torch.randn(pairs.n, width, generator=generator)
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(pairs @ basis)[0]
    small = basis.T @ (pairs @ basis)
    values, turn = torch.linalg.eigh((small + small.T) / 2)
    largest = torch.arange(width - 1, max(width - dim, 0) - 1, -1)
    largest = largest[values[largest] > 0]
    vectors: Tensor = basis @ (turn[:, largest] * values[largest].sqrt())
    return vectors


@torch.no_grad()
def begin_with_vectors(
    model: Any,
    recipe: Recipe,
    dataset: Dataset,
    say: Callable[[str], None] = lambda _: None,
    known: dict[int, Tensor] | None = None,
) -> bool:
    """Give items their first vectors, where `model.init` asks for it and the model allows it.

    It does if item vectors are rows of a table, or a linear map of these and of content, of length
    1. That map then begins by passing the rows through and leaving content out.

    Args:
        model: Towers as they were built.
        recipe: By which they were built.
        dataset: Whose training sequences are counted.
        say: Gets a sentence for the user.
        known: Vectors of the same dataset and seed by their width; new ones are added.

    Returns:
        Whether it did; otherwise items begin at random.
    """
    tower = getattr(model, "item_tower", None)
    if recipe.model.init == "random" or not recipe.model.normalize or type(tower) is not ItemTower:
        return False
    table, layers = tower.table, tower.layers
    if not isinstance(table, EmbeddingTable) or (layers is not None and len(layers) > 1):
        return False
    began, known = time.perf_counter(), {} if known is None else known
    if table.dim not in known:
        with using(recipe.train.threads or 1):  # sums depend on how they are split
            known[table.dim] = cooccurrence_vectors(
                *dataset.train_sequences(),
                num_items=dataset.num_items,
                dim=table.dim,
                seed=recipe.train.seed,
            )
    table.weight.copy_(known[table.dim])
    if layers is not None:
        nn.init.eye_(cast("Tensor", layers[0].weight))
    seconds = time.perf_counter() - began
    say(f"items begin near those of the same sequences (model.init): {seconds:.1f} seconds")
    return True
