"""Item vectors to begin training with, counted from which items stand near each other.

    pairs = near_pairs(*dataset.train_sequences(), dataset.num_items)
    vectors = cooccurrence_vectors(pairs, dim=256)

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

from crossbatch.kernels.memory import return_freed_memory
from crossbatch.models import EmbeddingTable, ItemTower
from crossbatch.training.threads import using

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset

WINDOW = 10  # places to either side that are near
DECAY = 0.2  # a pair counts e^(−DECAY) times as much with each place between its items
DOUBT = 1.0  # pairs of this weight count half: what was seen once may be chance
MOST_PAIRS, FEWEST = 16_000_000, 50  # pairs kept in all, but so many of each item at least
PAIRS = 1 << 20  # items or pairs counted at once: bounds the working memory at some 50 MB
OVERSAMPLED, ROUNDS = 8, 3  # of the search for eigenvectors: further columns, and products
NOISE = 0.1  # length of a random part where there are fewer eigenvectors than dimensions

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cooccurrence_vectors(pairs: Pairs, dim: int, *, seed: int = 0) -> Tensor:
    """Unit vectors `[num_items + 1, dim]`, zeros for padding; random where nothing was counted."""
    generator = torch.Generator().manual_seed(seed)
    vectors = leading_vectors(pairs, dim, generator)
    missing, uncounted = dim - vectors.shape[1], torch.nonzero(vectors.norm(dim=1) == 0).squeeze(1)
    if missing:  # products of zeros would stay zero in training
        vectors = pad(normalize(vectors, dim=1), (0, missing))
        vectors += torch.randn(vectors.shape, generator=generator).mul_(NOISE / dim**0.5)
    vectors[uncounted] = torch.randn(len(uncounted), dim, generator=generator)
    normalize(vectors, dim=1, out=vectors)
    vectors[0] = 0
    return vectors


@dataclass(frozen=True, slots=True)
class Pairs:
    """A symmetric matrix `[n, n]` as the sum of another one and its transpose."""

    n: int
    half: Tensor  # sparse CSR; the columns of a row are in any order
    transposed: Tensor  # sparse CSR

    def __matmul__(self, columns: Tensor) -> Tensor:
        return (self.half @ columns).addmm_(self.transposed, columns)


def near_pairs(
    offsets: npt.NDArray[np.integer], items: npt.NDArray[np.integer], num_items: int
) -> Pairs:
    """The positive pointwise mutual information of items that stand near each other.

    Of large catalogues, pairs that are among the first of neither of their items are left out.

    Args:
        offsets: `[U + 1]`; user u's sequence is `items[offsets[u]:offsets[u + 1]]`.
        items: Item ids of all sequences, oldest first.
        num_items: Ids run from 1 to this.
    """
    n, bounds = num_items + 1, np.asarray(offsets, np.int64)
    most = max(FEWEST, MOST_PAIRS // n)
    by_distance = np.exp(-DECAY * np.arange(WINDOW))
    degrees = _degrees(bounds, items, n, by_distance)
    total, count = degrees.sum(), 0
    columns, values = np.empty(n * most, np.int32), np.empty(n * most, np.float32)
    counts, last = np.zeros(n, np.int64), np.zeros(n, np.int64)  # of each row: kept, the last item
    for row, other, common in _counted(bounds, items, n, by_distance):
        information = np.log(common * total / (degrees[row] * degrees[other]))
        information = (information * common / (common + DOUBT)).astype(np.float32)
        kept = np.flatnonzero(information > 0)
        row, other, information = row[kept], other[kept], information[kept]
        # Rows ascend: the sort stays within them.
        order = np.lexsort((other, -information, row))
        order = order[np.arange(len(row)) - np.searchsorted(row, row) < most]
        new, row = slice(count, count + len(order)), row[order]
        columns[new], values[new], count = other[order], information[order], new.stop
        counts[row] = np.searchsorted(row, row, side="right") - np.searchsorted(row, row)
        last[row] = columns[new]
    columns, values = columns[:count], values[:count]
    ends = np.cumsum(counts)
    least = np.where(counts == most, values[ends - 1] if count else 0, 0)
    # What both items keep is in the matrix and in its transpose.
    for start in range(0, count, PAIRS):
        column, value = columns[start : start + PAIRS], values[start : start + PAIRS]
        row = np.searchsorted(ends, np.arange(start, start + len(value)), side="right")
        level = (value == least[column]) & (row <= last[column])
        value[(value > least[column]) | level] /= 2
    return Pairs(n, _csr(ends, columns, values, n), _transposed(ends, columns, values, n))


def _degrees(offsets: Ints, items: npt.NDArray[np.integer], n: int, by_distance: Floats) -> Floats:
    """`[n]` weights of all pairs that each item is in."""
    degrees, start = np.zeros(n), 0
    while start < len(offsets) - 1:  # a run of whole sequences
        until = int(np.searchsorted(offsets, offsets[start] + PAIRS, side="right")) - 1
        ends = offsets[start : max(until, start + 1) + 1]
        some = items[ends[0] : ends[-1]].astype(np.int64)
        last = np.repeat(ends[1:] - ends[0], np.diff(ends))
        for distance, weight in enumerate(by_distance, start=1):
            near = np.flatnonzero(np.arange(len(some)) + distance < last)
            a, b = some[near], some[near + distance]
            differ = a != b
            degrees += weight * np.bincount(a[differ], minlength=n)
            degrees += weight * np.bincount(b[differ], minlength=n)
        start += len(ends) - 1
    return degrees


def _counted(
    offsets: Ints, items: npt.NDArray[np.integer], n: int, by_distance: Floats
) -> Iterator[tuple[Ints, Ints, Floats]]:
    """Yield, for runs of items, pairs of them and other items, ascending, and their weights."""
    # There are four numbers for each interaction of the log: half the memory where they fit.
    whole = np.int32 if len(items) < 2**31 else np.int64
    bounds, lengths = offsets.astype(whole), np.diff(offsets)
    first, last = np.repeat(bounds[:-1], lengths), np.repeat(bounds[1:], lengths)
    order = np.argsort(items, kind="stable").astype(whole)
    by_item = np.concatenate([[0], np.cumsum(np.bincount(items, minlength=n))])
    distances = np.concatenate([np.arange(-WINDOW, 0), np.arange(1, WINDOW + 1)])
    item = 0
    while item < n:
        until = np.searchsorted(by_item, by_item[item] + PAIRS // len(distances), side="right") - 1
        until = min(max(int(until), item + 1), n)
        places = order[by_item[item] : by_item[until]].astype(np.int64)
        others = places[:, None] + distances
        inside = (others >= first[places, None]) & (others < last[places, None])
        row, which = np.nonzero(inside)
        own, other = (items[at].astype(np.int64) for at in (places[row], others[inside]))
        distance = np.abs(distances[which]) - 1
        differ = own != other
        # As one number, which sorts faster; equal sets of distances have equal sums.
        keys = (own[differ] * n + other[differ]) * WINDOW + distance[differ]
        keys, distance = np.divmod(np.sort(keys), WINDOW)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        if len(begins):
            yield *np.divmod(keys[begins], n), np.add.reduceat(by_distance[distance], begins)
        item = until


def _transposed(
    ends: Ints, columns: npt.NDArray[np.int32], values: npt.NDArray[np.float32], n: int
) -> Tensor:
    """The transpose of `_csr`, some rows at a time, or sorting would take most of the memory."""
    counts = np.bincount(columns, minlength=n)
    until, turned, moved = np.cumsum(counts), np.empty_like(columns), np.empty_like(values)
    row = 0
    while row < n:
        start = until[row] - counts[row]
        after = max(int(np.searchsorted(until, start + PAIRS, side="right")), row + 1)
        inside = np.flatnonzero((columns >= row) & (columns < after))
        inside = inside[np.argsort(columns[inside], kind="stable")]
        turned[start : until[after - 1]] = np.searchsorted(ends, inside, side="right")
        moved[start : until[after - 1]] = values[inside]
        row = after
    return _csr(until, turned, moved, n)


def _csr(
    ends: Ints, columns: npt.NDArray[np.int32], values: npt.NDArray[np.float32], n: int
) -> Tensor:
    """The sparse matrix `[n, n]` whose rows end at `ends`."""
    begins = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR", UserWarning)  # that it is in beta
        return torch.sparse_csr_tensor(
            begins, torch.from_numpy(columns), torch.from_numpy(values), (n, n),
            check_invariants=False,
        )  # fmt: skip


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
            pairs = near_pairs(*dataset.train_sequences(), dataset.num_items)
            known[table.dim] = cooccurrence_vectors(pairs, table.dim, seed=recipe.train.seed)
            del pairs
        return_freed_memory()
    table.weight.copy_(known[table.dim])
    if layers is not None:
        nn.init.eye_(cast("Tensor", layers[0].weight))
    seconds = time.perf_counter() - began
    say(f"items begin near those of the same sequences (model.init): {seconds:.1f} seconds")
    return True
