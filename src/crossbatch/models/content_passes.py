"""Content on its way into a tower and back, without a graph: see `passes`.

    joined, backward = ColumnsPass(tower.table, tower.content)(item_ids)    # [N, width]
    backward(gradient)

Categories are rows of a table, which are read together with those of the ids. Everything else has a
pass of its own, from ids to vectors and from their gradient to whatever learns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from .embedding import EmbeddingTable, Read
from .features import (
    CategoricalEncoder,
    DenseEncoder,
    FeatureEncoder,
    MultiValuedEncoder,
    NumericEncoder,
)
from .pass_parts import Arrays, Ending, keeper_of

Array = np.ndarray
# From ids `[N]` to vectors `[N, w]`, and from their gradient to whatever learns.
ContentPass = Callable[[Tensor], tuple[Array, Callable[[Array], object]]]
FIRST = np.zeros(1, dtype=np.int64)  # where the columns of a table begin that is read alone


class TagsPass:
    """The mean of the vectors of a row's values."""

    def __init__(self, encoder: MultiValuedEncoder) -> None:
        from . import rows_kernel

        table = encoder.table
        assert table.offsets is not None
        self.values, self.offsets = table.values.numpy(), table.offsets.numpy()
        self.embedding = encoder.embedding
        self.weight = Arrays([self.embedding.weight])
        self._rows = rows_kernel

    def __call__(self, item_ids: Tensor) -> tuple[Array, Callable[[Array], None]]:
        """Vectors `[N, w]` of items `[N]`; zeros for one without values."""
        found, bags = self._rows.bags_of(self.values, self.offsets, item_ids.numpy())
        rows, bags_of_rows = torch.from_numpy(found), torch.from_numpy(bags)
        keeper = keeper_of(self.embedding)
        keeper.before_read(rows)
        vectors = np.empty((len(item_ids), self.embedding.dim), dtype=np.float32)
        share = np.empty(len(item_ids), dtype=np.float32)
        self._rows.mean_bags(self.weight()[0], found, bags, vectors, share)

        def backward(gradient: Array) -> None:
            self._rows.scale_rows(gradient, share)
            leaf = torch.from_numpy(gradient)
            keeper.after_read(Read(rows, bags_of_rows, leaf, given=True))

        return vectors, backward


class NumbersPass:
    """Columns as they stand, or through the linear layer of their encoder."""

    def __init__(self, encoder: NumericEncoder) -> None:
        self.values = encoder.table.values.numpy()
        layer = encoder.layer
        plain = isinstance(layer, nn.Identity)
        self.ending = None if plain else Ending((layer,), normalize=False, to_input=False)

    def __call__(self, item_ids: Tensor) -> tuple[Array, Callable[[Array], object]]:
        """Vectors `[N, w]` of items `[N]`."""
        # A map of a file is read here, row by row; other types of number become float32.
        numbers = np.asarray(self.values[item_ids.numpy()], dtype=np.float32)
        return self.ending(numbers) if self.ending else (numbers, lambda _: None)


# By exact type: an encoder that somebody derived from these may do something else.
CONTENT_PASSES: dict[type[nn.Module], Callable[..., ContentPass]] = {
    MultiValuedEncoder: TagsPass,
    NumericEncoder: NumbersPass,
    DenseEncoder: NumbersPass,
}


class ColumnsPass:
    """Rows of an id table and content, side by side.

    Args:
        table: Of the ids; or None.
        content: One that `fits`; or None.
    """

    def __init__(self, table: EmbeddingTable | None, content: FeatureEncoder | None) -> None:
        from . import rows_kernel

        self.tables: list[EmbeddingTable] = []  # of ids and categories, which are read together
        self.values: list[Array | None] = []  # the rows of each by id; None: the ids themselves
        self.columns: list[slice] = []  # of each table
        self.others: list[tuple[slice, ContentPass]] = []
        self.width = 0
        if table is not None:
            self._add_table(table, None)
        for encoder in content.encoders if content else ():
            if isinstance(encoder, CategoricalEncoder):
                self._add_table(encoder.embedding, encoder.table.values.numpy())
            else:
                columns = self._next_columns(cast("int", encoder.dim))
                self.others.append((columns, CONTENT_PASSES[type(encoder)](encoder)))
        self.weights = Arrays([table.weight for table in self.tables])
        self.firsts = np.array([columns.start for columns in self.columns], dtype=np.int64)
        self._rows = rows_kernel

    @staticmethod
    def fits(content: FeatureEncoder | None) -> bool:
        """Whether content is of the usual kinds."""
        encoders = content.encoders if content else ()
        return all(type(e) is CategoricalEncoder or type(e) in CONTENT_PASSES for e in encoders)

    def __call__(self, ids: Tensor) -> tuple[Array, Callable[[Array], None]]:
        """Columns `[N, width]` of ids `[N]`, and where their gradient goes."""
        joined = np.empty((len(ids), self.width), dtype=np.float32)
        rows, arrays = self._about_to_read(ids)
        if arrays:
            self._rows.gather(self.weights(), arrays, self.firsts, joined)
        ways_back = []
        for columns, content in self.others:
            joined[:, columns], way_back = content(ids)
            ways_back.append((columns, way_back))

        def backward(gradient: Array) -> None:
            self._give_back(rows, 1, gradient)
            for columns, way_back in ways_back:
                way_back(gradient[:, columns].copy())

        return joined, backward

    def mean(self, ids: Tensor, stops: Array) -> tuple[Array, Callable[[Array], None]]:
        """Means `[B, width]` over ids `[P]` history by history, zeros for an empty one; likewise.

        Histories end at `stops` `[B]`. Rows of tables are added up where they lie.
        """
        rows, arrays = self._about_to_read(ids)
        mean = np.empty((len(stops), self.width), dtype=np.float32)
        bags, share = self._rows.bags_until(stops)
        if arrays:
            self._rows.mean_columns(self.weights(), arrays, self.firsts, stops, share, mean)
        ways_back = []
        for columns, content in self.others:
            vectors, way_back = content(ids)
            every = (np.arange(len(ids)),)
            part = np.empty((len(stops), vectors.shape[1]), dtype=np.float32)
            self._rows.mean_columns((vectors,), every, FIRST, stops, share, part)
            mean[:, columns] = part
            ways_back.append((columns, way_back))

        def backward(gradient: Array) -> None:
            self._rows.scale_rows(gradient, share)
            self._give_back(rows, torch.from_numpy(bags), gradient)
            for columns, way_back in ways_back:
                way_back(gradient[:, columns][bags])

        return mean, backward

    def _add_table(self, table: EmbeddingTable, values: Array | None) -> None:
        self.tables.append(table)
        self.values.append(values)
        self.columns.append(self._next_columns(table.dim))

    def _next_columns(self, dim: int) -> slice:
        self.width += dim
        return slice(self.width - dim, self.width)

    def _about_to_read(self, ids: Tensor) -> tuple[list[Tensor], tuple[Array, ...]]:
        """The rows `[N]` of each table, after its keeper has been told of them; and as arrays."""
        given = np.ascontiguousarray(ids.numpy())  # compiled functions take arrays of one kind
        arrays = tuple(
            [
                given if known is None else self._rows.values_at(known, given)
                for known in self.values
            ]
        )
        rows = [ids if array is given else torch.from_numpy(array) for array in arrays]
        for table, own in zip(self.tables, rows, strict=True):
            keeper_of(table).before_read(own)
        return rows, arrays

    def _give_back(self, rows: list[Tensor], bags: Tensor | int, gradient: Array) -> None:
        """Hand the gradient of rows that were read, or of their sums, to the tables' keepers."""
        leaf = torch.from_numpy(gradient)
        for table, own, columns in zip(self.tables, rows, self.columns, strict=True):
            keeper_of(table).after_read(Read(own, bags, leaf, columns, given=True))
