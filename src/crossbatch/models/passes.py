"""Towers with a way back of their own: what autograd's graph would do, by two compiled calls.

    vectors, backward = ItemsPass(model)(item_ids)      # [N, d]
    backward(gradient)                                  # to `.grad` and to the tables' keepers

At a batch of 128, building a graph and walking it costs as much as the towers' arithmetic. Towers
that have no compiled form go through autograd behind the same interface (`GraphPass`), so that
whoever trains need not know which is which. Types are compared exactly: a tower that somebody has
derived from ours may do something else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from .content_passes import CONTENT_PASSES
from .embedding import EmbeddingTable, Read
from .features import CategoricalEncoder
from .item_tower import ItemTower
from .pass_parts import Arrays, Ending, HistoryReader, keeper_of, trainable
from .youtube_dnn import YouTubeDNN

if TYPE_CHECKING:
    from collections.abc import Callable

    from .content_passes import ContentPass
    from .two_tower import TwoTower

    Array = np.ndarray
    # From the gradient of the result to that of the item vectors it was computed from, if any.
    Backward = Callable[[Array], Array | None]
    Pass = Callable[..., tuple[Tensor, Backward]]


def items_pass(model: TwoTower) -> Pass:
    """`model.items` with its way back."""
    return ItemsPass(model) if ItemsPass.fits(model) else GraphPass(model.items)


def users_pass(model: TwoTower) -> Pass:
    """The user side of `model.forward`, a function of item vectors, history and user ids."""
    from .sequence_passes import GRUPass, MINDPass

    for kind in (UsersPass, MINDPass, GRUPass):
        if kind.fits(model):
            return kind(model)
    return GraphPass(lambda v, history, users: model.select(model.users(history, users), v))


class GraphPass:
    """Any function of tensors, with autograd's way back.

    Args:
        function: Of item vectors or ids, and more.
    """

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function = function

    def __call__(self, items: Tensor, *more: Tensor) -> tuple[Tensor, Backward]:
        """The result as a constant, and the way back to the leaves of its graph."""
        leaf = items.detach()
        if leaf.is_floating_point():
            leaf.requires_grad_()
        with torch.enable_grad():
            result = self.function(leaf, *more)

        def backward(gradient: Array) -> Array | None:
            if result.requires_grad:  # not where everything is frozen
                torch.autograd.backward(result, torch.from_numpy(gradient))
            return None if leaf.grad is None else leaf.grad.numpy()

        return result.detach(), backward


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


class UsersPass:
    """The mean of the history's rows through the layers of a `YouTubeDNN`.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        from .rows_kernel import mean_rows, scale_rows

        self.reader = HistoryReader(model)
        self.ending = Ending(cast("YouTubeDNN", model.user_tower).layers, model.normalize)
        self._mean_rows, self._scale_rows = mean_rows, scale_rows

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether a user is the mean of the history's id vectors, through layers."""
        return type(model.user_tower) is YouTubeDNN and HistoryReader.fits(model)

    def __call__(self, v: Tensor, history: Tensor, user_ids: Tensor) -> tuple[Tensor, Backward]:
        """User vectors `[B, d]` of histories `[B, L]`."""
        B, L = history.shape
        reader, flat = self.reader, self.reader.trained_on(history).reshape(-1)
        keeper = keeper_of(reader.table)
        keeper.before_read(flat)
        mean = np.empty((B, reader.table.dim), dtype=np.float32)
        share = np.empty(B, dtype=np.float32)
        self._mean_rows(reader.weight()[0], flat.numpy(), mean, share)
        vectors, back = self.ending(mean)

        def backward(gradient: Array) -> None:
            of_sums = back(gradient)
            self._scale_rows(of_sums, share)
            keeper.after_read(Read(flat, L, torch.from_numpy(of_sums), given=True))

        return torch.from_numpy(vectors), backward
