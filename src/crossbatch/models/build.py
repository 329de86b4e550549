"""The table of user towers, and a whole model from a name."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from torch import nn

from .comirec_sa import ComiRecSA
from .embedding import RowTable
from .features import FeatureTable
from .gru4rec import GRU4Rec
from .item_tower import NO_FEATURES, ItemTower
from .mind import MIND
from .recent_items import RecentItems
from .sasrec import SASRec
from .two_tower import TwoTower, history_dim
from .youtube_dnn import YouTubeDNN

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

MODELS: dict[str, Callable[..., nn.Module]] = {
    "youtube_dnn": YouTubeDNN,
    "gru4rec": GRU4Rec,
    "mind": MIND,
    "comirec_sa": ComiRecSA,
    "sasrec": SASRec,
    "recent_items": RecentItems,
}


def build_model(
    name: str,
    num_items: int,
    dim: int = 64,
    *,
    tower: Mapping[str, Any] = NO_OPTIONS,
    item: Mapping[str, Any] = NO_OPTIONS,
    item_features: Mapping[str, FeatureTable] = NO_FEATURES,
    user_features: Mapping[str, FeatureTable] = NO_FEATURES,
    history: str = "id",
    normalize: bool = False,
    history_dropout: float = 0.0,
    sparse: bool = True,
    id_table: RowTable | None = None,
) -> TwoTower:
    """An item tower and the user tower `MODELS[name]`, ready to train.

    Args:
        name: A key of `MODELS`.
        num_items: Items are 1..num_items.
        dim: Width d of all vectors.
        tower: Options of the user tower.
        item: Options of `ItemTower`.
        item_features: Content of items by name.
        user_features: Profile of users by name.
        history: As in `TwoTower`.
        normalize: As in `TwoTower`.
        history_dropout: As in `TwoTower`.
        sparse: Whether gradients of all tables are sparse tensors; `torch.optim.Adam` wants False.
        id_table: Table of the items' ids, if it is not to be made here.
    """
    if name not in MODELS:
        near = get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(MODELS)}"
        raise ValueError(f"unknown model {name!r}: {hint}")
    options = {"sparse": sparse, **item}
    item_tower = ItemTower(num_items, dim, id_table, features=item_features, **options)
    options = tower_options(name, tower, dim, history_dim(item_tower, history))
    return TwoTower(
        item_tower,
        MODELS[name](dim, **options),
        history=history,
        user_features=user_features,
        normalize=normalize,
        history_dropout=history_dropout,
        sparse=sparse,
    )


def tower_options(
    name: str, options: Mapping[str, Any], dim: int, input_dim: int | None
) -> dict[str, Any]:
    """Options of the user tower `MODELS[name]`, the width of the histories it reads among them.

    A tower that knows no `input_dim`, or reads vectors of width d, is told nothing.
    """
    known = inspect.signature(MODELS[name]).parameters if name in MODELS else {}
    if input_dim in (None, dim) or "input_dim" not in known:
        return dict(options)
    return {"input_dim": input_dim, **options}
