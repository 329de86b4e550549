"""Embedding tables whose rows an optimiser can update at the cost of the rows read.

table = EmbeddingTable(num_items + 1, 64, padding_row=0)
vectors = table(item_ids)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossbatch.kernels.memory import on_large_pages
from crossbatch.kernels.row_gradients import RowRead
from crossbatch.kernels.table_rows import gather_rows, mean_rows

from .layers import check_at_least_one


class RowReader(Protocol):
    """An optimiser that is told of every read of a table, so that it can update single rows."""

    def before_read(self, ids: Tensor) -> None:
        """Bring the rows `ids` up to date: they are about to be read."""

    def after_read(self, read: RowRead) -> None:
        """Remember a read whose gradient comes with the backward pass."""


class RowTable(nn.Module, ABC):
    """Trainable rows as towers read them, wherever they are stored.

    Attributes:
        dim: Width d of a row.
        padding_row: A row of zeros that never receives a gradient, or None.
    """

    dim: int
    padding_row: int | None

    @abstractmethod
    def forward(self, ids: Tensor) -> Tensor:
        """Rows `[*, d]` of the ids `[*]`."""

    @abstractmethod
    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`."""

    def set_rate(self, lr: float) -> None:
        """Set the learning rate of a table that updates its own rows in the backward pass."""


class EmbeddingTable(RowTable):
    """`num_rows` trainable vectors, Glorot-uniform on the table's own shape.

    At 367,983 rows of 64 the limit is 0.004; the `N(0, 1)` of `nn.Embedding` is some 430 times
    larger and trains very differently.

    Args:
        num_rows: Rows, padding included.
        dim: Width d of a row.
        sparse: Whether `weight.grad` is a sparse tensor over the rows read. Turn it off for
            optimisers that know dense gradients only, such as `torch.optim.Adam`.
        padding_row: A row of zeros that never receives a gradient, so that it stays zero.

    Attributes:
        weight: Parameter `[num_rows, d]`.
        row_optimizer: The optimiser of single rows, if there is one. It is told of every read, and
            gets the gradient of what was read instead of `weight.grad`: no tensor of the table's
            size and no sparse tensor is ever made. Not part of copies or of the state.
    """

    row_optimizer: RowReader | None

    def __init__(
        self, num_rows: int, dim: int, *, sparse: bool = True, padding_row: int | None = None
    ) -> None:
        super().__init__()
        check_at_least_one(num_rows=num_rows, dim=dim)
        self.weight = nn.Parameter(on_large_pages(torch.empty(num_rows, dim)))
        self.dim, self.sparse = dim, sparse
        self.padding_row = padding_row
        self.row_optimizer = None
        nn.init.xavier_uniform_(self.weight)
        if padding_row is not None:
            nn.init.zeros_(self.weight[padding_row])

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `[*, d]` of the ids `[*]`."""
        if self.row_optimizer is None:
            return functional.embedding(
                ids, self.weight, padding_idx=self.padding_row, sparse=self.sparse
            )
        return read_side_by_side([(self, ids.reshape(-1))]).view(*ids.shape, -1)

    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`.

        An empty bag is a row of zeros.
        """
        if self.row_optimizer is None:
            return functional.embedding_bag(
                ids, self.weight, offsets, mode="mean", sparse=self.sparse
            )
        return mean_side_by_side([(self, ids)], offsets)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has rows of its own, which the optimiser of the original does not update.
        return {**self.__dict__, "row_optimizer": None}

    def extra_repr(self) -> str:
        """The table's size, as shown by `print(model)`."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, sparse={self.sparse}"


def read_side_by_side(lookups: Sequence[tuple[EmbeddingTable, Tensor]]) -> Tensor:
    """Rows `[N, Σ d]` of several tables, each of ids `[N]` of its own.

    Tables with a row optimiser are read into one leaf of autograd's graph: nothing is copied to
    join their rows, or to part the gradients.
    """
    if any(table.row_optimizer is None for table, _ in lookups):
        return torch.cat([table(ids) for table, ids in lookups], dim=-1)
    rows = gather_rows(*_prepared(lookups))
    _remember(lookups, rows, None)
    return rows


def mean_side_by_side(lookups: Sequence[tuple[EmbeddingTable, Tensor]], offsets: Tensor) -> Tensor:
    """Mean rows `[N, Σ d]` of several tables over N bags; zeros for an empty bag.

    Args:
        lookups: Tables, each with ids `[n]` of its own.
        offsets: `[N]` where each bag begins, the same in all of them.
    """
    if any(table.row_optimizer is None for table, _ in lookups):
        return torch.cat([table.mean(ids, offsets) for table, ids in lookups], dim=-1)
    means, sizes = mean_rows(*_prepared(lookups), offsets)
    _remember(lookups, means, sizes)
    return means


def _prepared(
    lookups: Sequence[tuple[EmbeddingTable, Tensor]],
) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of tables whose rows are up to date, and the ids to read."""
    for table, ids in lookups:
        assert table.row_optimizer is not None
        table.row_optimizer.before_read(ids)
    return [table.weight.detach() for table, _ in lookups], [ids for _, ids in lookups]


def _remember(
    lookups: Sequence[tuple[EmbeddingTable, Tensor]], leaf: Tensor, sizes: Tensor | None
) -> None:
    """Tell the optimisers of tables that were read into one leaf, row by row or in bags."""
    if not torch.is_grad_enabled():
        return
    first = 0
    for table, ids in lookups:
        if table.row_optimizer and table.weight.requires_grad:
            leaf.requires_grad_()
            columns = slice(first, first + table.dim)
            table.row_optimizer.after_read(RowRead(ids, leaf, sizes, columns))
        first += table.dim


def set_sparse(module: nn.Module, sparse: bool) -> None:
    """Make the gradients of all tables inside `module` sparse tensors or dense ones."""
    for part in module.modules():
        if isinstance(part, EmbeddingTable):
            part.sparse = sparse
