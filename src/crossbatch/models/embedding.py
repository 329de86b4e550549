"""The one place where a big table is read, so that an optimiser can keep its cost to the rows read.

table = EmbeddingTable(num_items + 1, 64, padding_row=0)
vectors = table(item_ids)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .checks import check_at_least_one


class EmbeddingTable(nn.Module):
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
        before_read: Called with the row ids of every read, before it: an optimiser that updates
            rows lazily brings them up to date here. Not part of copies or of the state.
    """

    before_read: Callable[[Tensor], None] | None

    def __init__(
        self, num_rows: int, dim: int, *, sparse: bool = True, padding_row: int | None = None
    ) -> None:
        super().__init__()
        check_at_least_one(num_rows=num_rows, dim=dim)
        self.weight = nn.Parameter(torch.empty(num_rows, dim))
        self.sparse = sparse
        self.padding_row = padding_row
        self.before_read = None
        nn.init.xavier_uniform_(self.weight)
        if padding_row is not None:
            nn.init.zeros_(self.weight[padding_row])

    def forward(self, ids: Tensor) -> Tensor:
        """Rows `[*, d]` of the ids `[*]`."""
        if self.before_read is not None:
            self.before_read(ids)
        return functional.embedding(
            ids, self.weight, padding_idx=self.padding_row, sparse=self.sparse
        )

    def mean(self, ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean row `[N, d]` of each of N bags; bag n is `ids[offsets[n]:offsets[n + 1]]`.

        An empty bag is a row of zeros.
        """
        if self.before_read is not None:
            self.before_read(ids)
        return functional.embedding_bag(ids, self.weight, offsets, mode="mean", sparse=self.sparse)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has rows of its own, which the optimiser of the original does not look after.
        return {**self.__dict__, "before_read": None}

    def extra_repr(self) -> str:
        """The table's size, as shown by `print(model)`."""
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}, sparse={self.sparse}"


def set_sparse(module: nn.Module, sparse: bool) -> None:
    """Make the gradients of all tables inside `module` sparse tensors or dense ones."""
    for part in module.modules():
        if isinstance(part, EmbeddingTable):
            part.sparse = sparse
