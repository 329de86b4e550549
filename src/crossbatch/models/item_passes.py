"""`ItemsPass`: ids and content through an item tower and back, without a graph; see `passes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from .content_passes import CONTENT_PASSES
from .embedding import EmbeddingTable, Read
from .features import CategoricalEncoder
from .item_tower import ItemTower
from .pass_parts import Arrays, Ending, keeper_of, trainable

if TYPE_CHECKING:
    from .content_passes import ContentPass
    from .passes import Backward
    from .two_tower import TwoTower

    Array = np.ndarray


class ItemsPass:
    """Ids and content through the layers of an `ItemTower`.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        from . import rows_kernel

        tower = cast("ItemTower", model.item_tower)
        self.tables: list[EmbeddingTable] = []  # ids and categories, which are read together
        self.values: list[Array | None] = []  # the rows of each by item; None: the ids themselves
        self.columns: list[slice] = []  # of each table
        self.others: list[tuple[slice, ContentPass]] = []
        self.width = 0
        if isinstance(tower.table, EmbeddingTable):
            self._add_table(tower.table, None)
        for encoder in tower.content.encoders if tower.content else ():
            if isinstance(encoder, CategoricalEncoder):
                self._add_table(encoder.embedding, encoder.table.values.numpy())
            else:
                columns = self._next_columns(cast("int", encoder.dim))
                self.others.append((columns, CONTENT_PASSES[type(encoder)](encoder)))
        self.weights = Arrays([table.weight for table in self.tables])
        self.firsts = np.array([columns.start for columns in self.columns], dtype=np.int64)
        self.ending = Ending(tower.layers, model.normalize)
        self._rows = rows_kernel

    def _add_table(self, table: EmbeddingTable, values: Array | None) -> None:
        self.tables.append(table)
        self.values.append(values)
        self.columns.append(self._next_columns(table.dim))

    def _next_columns(self, dim: int) -> slice:
        self.width += dim
        return slice(self.width - dim, self.width)

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether items are ids and content of the usual kinds, the ids' table being kept here."""
        tower = model.item_tower
        if type(tower) is not ItemTower or not trainable(tower):
            return False
        encoders = tower.content.encoders if tower.content else ()
        usual = all(type(e) is CategoricalEncoder or type(e) in CONTENT_PASSES for e in encoders)
        return usual and (tower.table is None or type(tower.table) is EmbeddingTable)

    def __call__(self, item_ids: Tensor) -> tuple[Tensor, Backward]:
        """Vectors `[N, d]` of items `[N]`."""
        joined = np.empty((len(item_ids), self.width), dtype=np.float32)
        rows_of = self._read(item_ids, joined)
        ways_back = []
        for columns, content in self.others:
            joined[:, columns], way_back = content(item_ids)
            ways_back.append((columns, way_back))
        vectors, back = self.ending(joined)

        def backward(gradient: Array) -> None:
            whole = back(gradient)
            leaf = torch.from_numpy(whole)
            for table, rows, columns in zip(self.tables, rows_of, self.columns, strict=True):
                keeper_of(table).after_read(Read(rows, 1, leaf, columns, given=True))
            for columns, way_back in ways_back:
                way_back(whole[:, columns].copy())

        return torch.from_numpy(vectors), backward

    def _read(self, item_ids: Tensor, joined: Array) -> list[Tensor]:
        """Rows of the tables into their columns of `joined`; which rows, for each table."""
        if not self.tables:
            return []
        ids = item_ids.numpy()
        found = np.empty((len(self.tables), len(ids)), dtype=np.int64)
        for values, own in zip(self.values, found, strict=True):
            if values is None:
                own[:] = ids
            else:
                self._rows.gather_values(values, ids, own)
        rows_of = [torch.from_numpy(rows) for rows in found]
        for table, rows in zip(self.tables, rows_of, strict=True):
            keeper_of(table).before_read(rows)
        self._rows.gather(self.weights(), found, self.firsts, joined)
        return rows_of
