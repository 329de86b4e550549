"""The one place where a big table is read, so that an optimiser can keep its cost to the rows read.

table = EmbeddingTable(num_items + 1, 64, padding_row=0)
vectors = table(item_ids)
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossbatch.kernels.pages import on_large_pages

from .checks import check_at_least_one


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """Rows that a forward pass took from a table.

    Attributes:
        ids: `[n]` rows of the table.
        bags: `[n]` the sum that each row went into; or how many consecutive rows each sum is of.
        leaf: `[m, >= d]` what the towers saw, a leaf of autograd's graph. Or, where the way back
            was gone without a graph, the gradient itself (`given`).
        columns: Those of `leaf` that are of this table; others are of tables read beside it.
        given: Whether `leaf` is the gradient.
    """

    ids: Tensor
    bags: Tensor | int
    leaf: Tensor
    columns: slice = field(default_factory=lambda: slice(None))
    given: bool = False

    @property
    def wide_gradient(self) -> Tensor | None:
        """`[m, >= d]` gradient of all columns of `leaf`; None where none has come."""
        return self.leaf if self.given else self.leaf.grad

    @property
    def gradient(self) -> Tensor | None:
        """`[m, d]` gradient of the rows or of their sums; None where none has come."""
        wide = self.wide_gradient
        return None if wide is None else wide[:, self.columns]


class RowKeeper(Protocol):
    """An optimiser that looks after single rows of a table."""

    def before_read(self, ids: Tensor) -> None:
        """Bring the rows `ids` up to date: they are about to be read."""

    def after_read(self, read: Read) -> None:
        """Remember a read whose gradient will come."""


class RowTable(nn.Module, ABC):
    """Trainable rows as towers read them, wherever they are kept.

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
    def sum(self, ids: Tensor) -> Tensor:
        """Sums `[B, d]` over the rows of each line of ids `[B, L]`."""

    @abstractmethod
    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`."""


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
        keeper: Who updates single rows. It is told of every read, and gets the gradient of what was
            read instead of `weight.grad`: no tensor of the table's size or sparse bookkeeping is
            ever made. Not part of copies or of the state.
    """

    keeper: RowKeeper | None

    def __init__(
        self, num_rows: int, dim: int, *, sparse: bool = True, padding_row: int | None = None
    ) -> None:
        super().__init__()
        check_at_least_one(num_rows=num_rows, dim=dim)
        self.weight = nn.Parameter(on_large_pages(torch.empty(num_rows, dim)))
        self.dim, self.sparse = dim, sparse
        self.padding_row = padding_row
        self.keeper = None
        nn.init.xavier_uniform_(self.weight)
        if padding_row is not None:
            nn.init.zeros_(self.weight[padding_row])

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `[*, d]` of the ids `[*]`."""
        if self.keeper is None:
            return functional.embedding(
                ids, self.weight, padding_idx=self.padding_row, sparse=self.sparse
            )
        flat = ids.reshape(-1)
        self.keeper.before_read(flat)
        rows = self.weight.detach().index_select(0, flat)
        return self._kept(flat, 1, rows).view(*ids.shape, -1)

    def sum(self, ids: Tensor) -> Tensor:
        """Sums `[B, d]` over the rows of each line of ids `[B, L]`."""
        if self.keeper is None:
            return functional.embedding_bag(
                ids, self.weight, mode="sum", sparse=self.sparse, padding_idx=self.padding_row
            )
        flat = ids.reshape(-1)
        self.keeper.before_read(flat)
        # Padding rows are zeros; naming them would take embedding_bag off its fast path.
        sums = functional.embedding_bag(ids, self.weight.detach(), mode="sum")
        return self._kept(flat, ids.shape[1], sums)

    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`.

        An empty bag is a row of zeros.
        """
        if self.keeper is None:
            return functional.embedding_bag(
                ids, self.weight, offsets, mode="mean", sparse=self.sparse
            )
        self.keeper.before_read(ids)
        sums = functional.embedding_bag(ids, self.weight.detach(), offsets, mode="sum")
        sizes = offsets.diff(append=offsets.new_tensor([ids.shape[0]]))  # [N]
        bags = torch.arange(len(sizes), device=ids.device).repeat_interleave(sizes)
        return self._kept(ids, bags, sums) / sizes.clamp(min=1).unsqueeze(1)

    def remember(self, read: Read) -> None:
        """Tell the keeper of a read whose gradient will come."""
        if self.keeper and torch.is_grad_enabled() and self.weight.requires_grad:
            read.leaf.requires_grad_()
            self.keeper.after_read(read)

    def _kept(self, ids: Tensor, bags: Tensor | int, rows: Tensor) -> Tensor:
        self.remember(Read(ids, bags, rows))
        return rows

    def __getstate__(self) -> dict[str, Any]:
        # A copy has rows of its own, which the optimiser of the original does not look after.
        return {**self.__dict__, "keeper": None}

    def extra_repr(self) -> str:
        """The table's size, as shown by `print(model)`."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, sparse={self.sparse}"


def side_by_side(lookups: Sequence[tuple[EmbeddingTable, Tensor]]) -> Tensor:
    """Rows `[N, Σ d]` of several tables, each of ids `[N]` of its own.

    Tables with a keeper are read into one leaf: nothing is copied to join their rows, or to part
    the gradients.
    """
    if any(table.keeper is None for table, _ in lookups):
        return torch.cat([table(ids) for table, ids in lookups], dim=-1)
    weights = [table.weight.detach() for table, _ in lookups]
    rows = weights[0].new_empty(len(lookups[0][1]), sum(weight.shape[1] for weight in weights))
    reads, first = [], 0
    for (table, ids), weight in zip(lookups, weights, strict=True):
        assert table.keeper is not None
        table.keeper.before_read(ids)
        torch.index_select(weight, 0, ids, out=rows.narrow(1, first, weight.shape[1]))
        reads.append((table, Read(ids, 1, rows, slice(first, first + weight.shape[1]))))
        first += weight.shape[1]
    for table, read in reads:
        table.remember(read)
    return rows


def set_sparse(module: nn.Module, sparse: bool) -> None:
    """Make the gradients of all tables inside `module` sparse tensors or dense ones."""
    for part in module.modules():
        if isinstance(part, EmbeddingTable):
            part.sparse = sparse
