"""`ItemsPass`: ids and content through an item tower and back, without a graph; see `passes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from .content_passes import ColumnsPass
from .embedding import EmbeddingTable
from .item_tower import ItemTower
from .pass_parts import Ending, trainable

if TYPE_CHECKING:
    from .passes import Backward
    from .two_tower import TwoTower


class ItemsPass:
    """Ids and content through the layers of an `ItemTower`.

    Args:
        model: One that `fits`.
    """

    def __init__(self, model: TwoTower) -> None:
        tower = cast("ItemTower", model.item_tower)
        self.columns = ColumnsPass(cast("EmbeddingTable | None", tower.table), tower.content)
        self.ending = Ending(tower.layers, model.normalize)

    @staticmethod
    def fits(model: TwoTower) -> bool:
        """Whether items are ids and content of the usual kinds, the ids' table being kept here."""
        tower = model.item_tower
        if type(tower) is not ItemTower or not trainable(tower):
            return False
        here = tower.table is None or type(tower.table) is EmbeddingTable
        return here and ColumnsPass.fits(tower.content)

    def __call__(self, item_ids: Tensor) -> tuple[Tensor, Backward]:
        """Vectors `[N, d]` of items `[N]`."""
        joined, to_tables = self.columns(item_ids)
        vectors, back = self.ending(joined)
        return torch.from_numpy(vectors), lambda gradient: to_tables(back(gradient))
