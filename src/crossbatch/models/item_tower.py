"""The item tower g_v: item id and content to one vector.

tower = ItemTower(num_items=3706, dim=64, features={"genres": genres}, hidden=(128,))
vectors = tower(item_ids)                       # [N, 64]
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from crossbatch.kernels.history_means import history_mean

from .embedding import (
    EmbeddingTable,
    RowTable,
    mean_side_by_side,
    read_side_by_side,
    set_sparse,
)
from .features import CategoricalEncoder, FeatureEncoder, FeatureTable
from .layers import check_at_least_one, mlp

NOTHING: Mapping[str, int] = MappingProxyType({})
NO_FEATURES: Mapping[str, FeatureTable] = MappingProxyType({})


class ItemTower(nn.Module):
    """Id embedding and content encodings, concatenated, through a linear layer or an MLP.

    Without content and hidden layers the tower *is* its table, as in ComiRec: the vectors that
    describe the history and the vectors that are scored are the same rows.

    Args:
        num_items: Items are 1..num_items; row 0 is padding and never trained.
        dim: Width d of the vectors.
        table: The id table; an `EmbeddingTable` of the tower's own unless given.
        encoder: A further, expensive encoder of content, such as a `TextEncoder`: items `[N]` to
            `[N, encoder.dim]`.
        features: Content by name, `num_items + 1` rows each.
        id: Whether items have an embedding of their own. Without one the tower is made of content
            alone and gives vectors to items it has never seen.
        id_dim: Width of the id embedding; `dim` unless given.
        hidden: Widths of ReLU layers before the last, linear one.
        feature_dims: Widths of single features' encodings, by name.
        sparse: Whether the tables' gradients are sparse tensors (see `EmbeddingTable`).

    Attributes:
        table: The id table, or None.
        width: Of what describes an item: its id embedding and its content, side by side.
    """

    def __init__(
        self,
        num_items: int,
        dim: int,
        table: RowTable | None = None,
        encoder: nn.Module | None = None,
        *,
        features: Mapping[str, FeatureTable] = NO_FEATURES,
        id: bool = True,  # noqa: A002 (the recipe's own word)
        id_dim: int | None = None,
        hidden: Sequence[int] = (),
        feature_dims: Mapping[str, int] = NOTHING,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        id_dim = dim if id_dim is None else id_dim
        check_at_least_one(num_items=num_items, dim=dim, id_dim=id_dim)
        _check_features(num_items, features, id or encoder is not None)
        self.num_items, self.dim = num_items, dim
        if table is None and id:
            table = EmbeddingTable(num_items + 1, id_dim, padding_row=0)
        self.table = table
        self.content = FeatureEncoder(features, feature_dims) if features else None
        self.encoder = encoder
        parts: tuple[Any, ...] = (self.content, encoder)
        self.width = (id_dim if id else 0) + sum(part.dim for part in parts if part is not None)
        bare = self.content is None and encoder is None and not hidden and id_dim == dim
        self.layers = None if bare else mlp(self.width, hidden, dim)
        # Content that is nothing but tables is read together with the ids.
        encoders = self.content.encoders if self.content else ()
        tables = [encoder for encoder in encoders if isinstance(encoder, CategoricalEncoder)]
        self._categories = tables if len(tables) == len(encoders) else []
        set_sparse(self, sparse)

    def forward(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, d]` of items `[N]`."""
        columns = self.columns(item_ids)  # [N, width]
        vectors: Tensor = columns if self.layers is None else self.layers(columns)
        return vectors

    def columns(self, item_ids: Tensor) -> Tensor:
        """Id embedding and content `[N, width]` of items `[N]`: what the layers see."""
        if isinstance(self.table, EmbeddingTable) and self._categories:
            found = [encoder.lookup(item_ids) for encoder in self._categories]
            parts = [read_side_by_side([(self.table, item_ids), *found])]
        else:
            parts = [part(item_ids) for part in (self.table, self.content) if part is not None]
        if self.encoder is not None:
            parts.append(self.encoder(item_ids))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def mean_columns(self, item_ids: Tensor, offsets: Tensor) -> Tensor:
        """Mean `columns` `[B, width]` of bags of items; bag b begins at `offsets[b]`."""
        overridden = type(self).columns is not ItemTower.columns or self.encoder is not None
        if isinstance(self.table, EmbeddingTable) and self._categories and not overridden:
            found = [encoder.lookup(item_ids) for encoder in self._categories]
            return mean_side_by_side([(self.table, item_ids), *found], offsets)
        stops = torch.cat([offsets[1:], offsets.new_tensor([len(item_ids)])])
        return history_mean(self.columns(item_ids), stops)


def mean_id_vector(table: Tensor, counts: Tensor) -> Tensor:
    """The mean `[d]` of id vectors `[H + 1, d]`, each weighted by how often its item was chosen.

    It stands for an item that training has not seen. `counts` `[H + 1 or more]` are of items.
    """
    weights = counts[: len(table)].double()
    return (weights / weights.sum().clamp_min(1.0)).to(table.dtype) @ table


def _check_features(num_items: int, features: Mapping[str, FeatureTable], has_id: bool) -> None:
    if not has_id and not features:
        raise ValueError("id=False needs at least one feature: nothing else describes an item")
    for name, table in features.items():
        if len(table) != num_items + 1:
            raise ValueError(
                f"feature {name!r} has {len(table)} rows, expected num_items + 1 = {num_items + 1} "
                "(row 0 is padding)"
            )
