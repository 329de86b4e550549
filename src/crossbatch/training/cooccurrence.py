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

from crossbatch.kernels.memory import freed_at_once, return_freed_memory
from crossbatch.kernels.near_pairs import nearest
from crossbatch.models import EmbeddingTable, ItemTower
from crossbatch.training.threads import using

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.config import Recipe, TrainConfig
    from crossbatch.data import Dataset

MOST_PAIRS, FEWEST = 16_000_000, 50  # pairs kept in all, but so many of each item at least
AT_ONCE = 1 << 20  # pairs handled at once: bounds the working memory
OVERSAMPLED, ROUNDS = 8, 3  # of the search for eigenvectors: further columns, and products
COLUMNS, ROWS = 32, 4096  # multiplied, or made orthogonal, at once: bounds the working memory
NOISE = 0.1  # length of a random part where there are fewer eigenvectors than dimensions

Ints = npt.NDArray[np.int64]


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

    @property
    def empty(self) -> Tensor:
        """Which rows have no entry: bool `[n]`."""
        counts = [part.crow_indices().diff() for part in (self.half, self.transposed)]
        return (counts[0] + counts[1]) == 0


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
    found = nearest(bounds, np.asarray(items), n, max(FEWEST, MOST_PAIRS // n))
    # What both items keep is in the matrix and in its transpose.
    for start in range(0, len(found.values), AT_ONCE):
        column, value = (part[start : start + AT_ONCE] for part in (found.columns, found.values))
        row = np.searchsorted(found.ends, np.arange(start, start + len(value)), side="right")
        level = (value == found.least[column]) & (row <= found.last[column])
        value[(value > found.least[column]) | level] /= 2
    rows = found.ends, found.columns, found.values
    return Pairs(n, _csr(*rows, n), _transposed(*rows, n))


def _transposed(
    ends: Ints, columns: npt.NDArray[np.int32], values: npt.NDArray[np.float32], n: int
) -> Tensor:
    """The transpose of `_csr`, some rows at a time, or sorting would take most of the memory."""
    counts = np.bincount(columns, minlength=n)
    until, turned, moved = np.cumsum(counts), np.empty_like(columns), np.empty_like(values)
    row = 0
    while row < n:
        start = until[row] - counts[row]
        after = max(int(np.searchsorted(until, start + AT_ONCE, side="right")), row + 1)
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

    Found by subspace iteration from random vectors. Rows without pairs are zeros.
    """
    width = min(dim + OVERSAMPLED, pairs.n)
    basis = torch.randn(pairs.n, width, generator=generator)
    some = basis.split(COLUMNS, dim=1)  # a product of all would take as much memory again
    for _ in range(ROUNDS):
        for columns in some:
            columns.copy_(pairs @ columns.contiguous())
        orthogonalise(basis)
    small = torch.cat([basis.T @ (pairs @ columns.contiguous()) for columns in some], dim=1)
    values, turn = torch.linalg.eigh((small + small.T) / 2)
    largest = torch.arange(width - 1, max(width - dim, 0) - 1, -1)
    largest = largest[values[largest] > 0]
    vectors: Tensor = basis @ (turn[:, largest] * values[largest].sqrt())
    vectors[pairs.empty] = 0  # but for rounding they are
    return vectors


def orthogonalise(columns: Tensor) -> Tensor:
    """Replace `columns` `[n, w]` by the Q of their QR decomposition, and return its R `[w, w]`.

    Blocks of rows are decomposed one by one, then their R's likewise: QR of all rows at once would
    need three times the memory of the columns.
    """
    width = columns.shape[1]
    blocks = columns.tensor_split(max(1, len(columns) // max(ROWS, 2 * width)))
    if len(blocks) == 1:
        decomposed = torch.linalg.qr(columns)
        columns.copy_(decomposed.Q)
        alone: Tensor = decomposed.R
        return alone
    rest = torch.cat([orthogonalise(block) for block in blocks])
    r = orthogonalise(rest)
    for block, turn in zip(blocks, rest.split(width), strict=True):
        block.copy_(block @ turn)
    return r


class FirstVectors:
    """The vectors of one dataset, counted when they are first asked for.

    Args:
        dataset: Whose training sequences are counted.
        train: The seed, and threads: sums depend on how they are split.
        width: So many dimensions are found where candidates for a model ask for fewer.
    """

    def __init__(self, dataset: Dataset, train: TrainConfig, width: int = 0) -> None:
        self.dataset, self.train, self.width = dataset, train, width
        self._known: dict[int, Tensor] = {}

    def of(self, dim: int) -> Tensor:
        """`[num_items + 1, dim]`."""
        if dim not in self._known:
            with freed_at_once(), using(self.train.threads or 1):
                pairs = near_pairs(*self.dataset.train_sequences(), self.dataset.num_items)
                self._known[dim] = cooccurrence_vectors(pairs, dim, seed=self.train.seed)
                del pairs
        return self._known[dim]

    def leading(self, dim: int) -> Tensor:
        """`[num_items + 1, dim]`, the leading dimensions of wider ones."""
        whole = self.of(max(dim, self.width))
        whole = self.of(max(dim, self.width))
        return whole if whole.shape[1] == dim else normalize(whole[:, :dim], dim=1)

    def forget(self) -> None:
        """Free them."""
        self._known.clear()
        return_freed_memory()


@torch.no_grad()
def begin_with_vectors(
    model: Any,
    recipe: Recipe,
    vectors: Callable[[int], Tensor],
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Give items their first vectors, where `model.init` asks for it and the model allows it.

    It does if item vectors are rows of a table, or a linear map of these and of content, of length
    1. That map then begins by passing the rows through and leaving content out.

    Args:
        model: Towers as they were built.
        recipe: By which they were built.
        vectors: Gives vectors of so many dimensions: a method of `FirstVectors`.
        say: Gets a sentence for the user.

    Returns:
        Whether it did; otherwise items begin at random.
    """
    tower = getattr(model, "item_tower", None)
    if recipe.model.init == "random" or not recipe.model.normalize or type(tower) is not ItemTower:
        return False
    table, layers = tower.table, tower.layers
    if not isinstance(table, EmbeddingTable) or (layers is not None and len(layers) > 1):
        return False
    began = time.perf_counter()
    table.weight.copy_(vectors(table.dim))
    if layers is not None:
        nn.init.eye_(cast("Tensor", layers[0].weight))
    seconds = time.perf_counter() - began
    say(f"items begin near those of the same sequences (model.init): {seconds:.1f} seconds")
    return True
