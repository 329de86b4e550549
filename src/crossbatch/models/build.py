"""The table of user towers, and a whole model from a name."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from torch import nn

from .comirec_sa import ComiRecSA
from .embedding import RowTable, set_sparse
from .features import FeatureTable
from .gru4rec import GRU4Rec
from .item_tower import NO_FEATURES, ItemTower
from .mind import MIND
from .own_towers import Inputs, find_tower, is_path
from .recent_items import RecentItems
from .sasrec import SASRec
from .text_towers import huggingface, text_transformer
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


ITEM_TOWERS: dict[str, Callable[..., nn.Module]] = {  # built from `Inputs`
    "text_transformer": text_transformer,
    "huggingface": huggingface,
}


def build_model(
    name: str,
    num_items: int,
    dim: int = 64,
    *,
    item_tower: str = "",
    named: bool = True,
    tower: Mapping[str, Any] = NO_OPTIONS,
    item: Mapping[str, Any] = NO_OPTIONS,
    item_features: Mapping[str, FeatureTable] = NO_FEATURES,
    user_features: Mapping[str, FeatureTable] = NO_FEATURES,
    context: Mapping[str, FeatureTable] = NO_FEATURES,
    history: str = "id",
    normalize: bool = False,
    history_dropout: float = 0.0,
    context_dropout: float = 0.0,
    sparse: bool = True,
    id_table: RowTable | None = None,
) -> TwoTower:
    """An item tower and the user tower `MODELS[name]`, ready to train.

    Args:
        name: A key of `MODELS`, or the import path of a user tower.
        num_items: Items are 1..num_items.
        dim: Width d of all vectors.
        item_tower: A key of `ITEM_TOWERS`, or the import path of an item tower; `ItemTower` if
            empty.
        named: Whether the caller wrote the import paths; see `own_towers`.
        tower: Options of the user tower.
        item: Options of the item tower.
        item_features: Content of items by name.
        user_features: Profile of users by name.
        context: Features of requests by name, a row for each event.
        history: As in `TwoTower`.
        normalize: As in `TwoTower`.
        history_dropout: As in `TwoTower`.
        context_dropout: As in `TwoTower`.
        sparse: Whether gradients of all tables are sparse tensors; `torch.optim.Adam` wants False.
        id_table: Table of the items' ids, if it is not to be made here.
    """
    make = user_tower_class(name, named=named)
    if item_tower:
        if id_table is not None:
            raise ValueError(f'train.tables="sharded" is for ItemTower alone, not {item_tower}')
        inputs = Inputs(
            num_items, dim, item_features, user_features, context, weights_follow=not named
        )
        items = item_tower_class(item_tower, named=named)(inputs, **item)
        if not sparse:
            set_sparse(items, sparse)
    else:
        options = {"sparse": sparse, **item}
        items = ItemTower(num_items, dim, id_table, features=item_features, **options)
    options = tower_options(make, tower, dim, history_dim(items, history))
    return TwoTower(
        items,
        make(dim, **options),
        history=history,
        user_features=user_features,
        context=context,
        normalize=normalize,
        history_dropout=history_dropout,
        context_dropout=context_dropout,
        sparse=sparse,
    )


def user_tower_class(name: str, *, named: bool) -> Callable[..., nn.Module]:
    """The user tower of a name in `MODELS`, or of an import path; `named` as in `build_model`."""
    return _tower_class("model", name, MODELS, named=named)


def item_tower_class(name: str, *, named: bool) -> Callable[..., nn.Module]:
    """The item tower of a name in `ITEM_TOWERS`, or of an import path."""
    return _tower_class("item_tower", name, ITEM_TOWERS, named=named)


def _tower_class(
    kind: str, name: str, known: Mapping[str, Callable[..., nn.Module]], *, named: bool
) -> Callable[..., nn.Module]:
    if is_path(name):
        return find_tower(name, named=named)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        choices = ", ".join([*known, "package.module:Class"])
        hint = f"did you mean {near[0]!r}?" if near else f"choose from {choices}"
        raise ValueError(f"unknown {kind} {name!r}: {hint}")
    return known[name]


def tower_options(
    make: Callable[..., nn.Module], options: Mapping[str, Any], dim: int, input_dim: int | None
) -> dict[str, Any]:
    """Options of a user tower, the width of the histories it reads among them.

    A tower that knows no `input_dim`, or reads vectors of width d, is told nothing.
    """
    known = inspect.signature(make).parameters
    if input_dim in (None, dim) or "input_dim" not in known:
        return dict(options)
    return {"input_dim": input_dim, **options}
