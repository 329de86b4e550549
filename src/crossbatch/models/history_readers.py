"""Vectors of a history's items, and the way of their gradients back; see `passes`.

rows, give_back = history_reader(model).read(ids)       # [P, d]
give_back(gradient)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from .content_passes import FIRST, ColumnsPass
from .embedding import EmbeddingTable
from .history import blank_positions
from .item_passes import ItemsPass
from .pass_parts import trainable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .item_tower import ItemTower
    from .two_tower import TwoTower

    Array = np.ndarray
    GiveBack = Callable[[Array], None]


def history_reader(model: TwoTower) -> HistoryReader:
    """The reader of a model's histories, which are readable."""
    return EncodedReader(model) if model.history == "item_tower" else ColumnsReader(model)


def is_readable(model: TwoTower) -> bool:
    """Whether histories can be read without a graph."""
    if not trainable(model):
        return False
    if model.history != "id":
        return ItemsPass.fits(model)
    return type(getattr(model.item_tower, "table", None)) is EmbeddingTable


class HistoryReader(ABC):
    """Which items histories are made of, in the orders that towers want; and their vectors.

    Args:
        model: Its history must be readable.
    """

    def __init__(self, model: TwoTower) -> None:
        from . import history_kernel, rows_kernel

        self.model = model
        self._history, self._rows = history_kernel, rows_kernel

    @abstractmethod
    def read(self, ids: Tensor) -> tuple[Array, GiveBack]:
        """Vectors `[P, w]` of items `[P]`, and where their gradient goes."""

    @abstractmethod
    def mean(self, history: Tensor) -> tuple[Array, GiveBack]:
        """Mean vectors `[B, w]` of histories `[B, L]`, zeros for an empty one; likewise."""

    def by_history(self, history: Tensor) -> tuple[Tensor, Array, Tensor]:
        """Real items `[P]` of histories `[B, L]`, where each ends, and positions in it `[P]`."""
        ids, stops, positions = self._history.by_history(self.trained_on(history).numpy())
        return torch.from_numpy(ids), stops, torch.from_numpy(positions)

    def by_step(self, history: Tensor) -> tuple[Tensor, Array, Array]:
        """Real items `[P]` step by step, how many there are of each, and whose they are."""
        ids, steps, order = self._history.by_step(self.trained_on(history).numpy())
        return torch.from_numpy(ids), steps, order

    def trained_on(self, history: Tensor) -> Tensor:
        """The history without what training forgets of it."""
        rate = self.model.history_dropout
        return blank_positions(history, rate) if self.model.training and rate > 0 else history


class ColumnsReader(HistoryReader):
    """Items are rows of the id table, with their content beside these where the model wants it."""

    def __init__(self, model: TwoTower) -> None:
        super().__init__(model)
        tower = cast("ItemTower", model.item_tower)
        content = tower.content if model.history == "content" else None
        self.columns = ColumnsPass(cast("EmbeddingTable | None", tower.table), content)

    def read(self, ids: Tensor) -> tuple[Array, GiveBack]:
        """As promised."""
        return self.columns(ids)

    def mean(self, history: Tensor) -> tuple[Array, GiveBack]:
        """As promised, without the columns of single items ever being written."""
        ids, stops, _ = self.by_history(history)
        return self.columns.mean(ids, stops)


class EncodedReader(HistoryReader):
    """Items go through the whole item tower, each distinct one once."""

    def __init__(self, model: TwoTower) -> None:
        super().__init__(model)
        self.items = ItemsPass(model)

    def read(self, ids: Tensor) -> tuple[Array, GiveBack]:
        """As promised."""
        vectors, where, add_up = self._encoded(ids)
        rows = vectors[where]
        return rows, lambda gradient: add_up(gradient, np.arange(len(rows)))

    def mean(self, history: Tensor) -> tuple[Array, GiveBack]:
        """As promised."""
        ids, stops, _ = self.by_history(history)
        vectors, where, add_up = self._encoded(ids)
        bags, share = self._rows.bags_until(stops)
        mean = np.empty((len(stops), vectors.shape[1]), dtype=np.float32)
        self._rows.mean_columns((vectors,), (where,), FIRST, stops, share, mean)

        def give_back(gradient: Array) -> None:
            self._rows.scale_rows(gradient, share)
            add_up(gradient, bags)

        return mean, give_back

    def _encoded(self, ids: Tensor) -> tuple[Array, Array, Callable[[Array, Array], None]]:
        """Vectors of distinct items, which of them each of `ids` `[P]` is, and the way back.

        That takes gradients `[m, d]` and which of them each of `ids` gets.
        """
        distinct, where = np.unique(ids.numpy(), return_inverse=True)
        vectors, back = self.items(torch.from_numpy(distinct))

        def add_up(gradient: Array, bags: Array) -> None:
            total = np.zeros((len(distinct), gradient.shape[1]), dtype=np.float32)
            self._rows.add_rows(gradient, bags, where, total)
            back(total)

        return vectors.numpy(), where, add_up
