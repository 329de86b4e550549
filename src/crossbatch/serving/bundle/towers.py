"""The two towers as a bundle stores them: weights in safetensors, shape in the recipe's words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from crossbatch.config import ModelConfig, build
from crossbatch.models import MODELS, ItemTower, TwoTower
from crossbatch.models.build import tower_options
from crossbatch.serving.bundle.manifest import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from crossbatch.models import FeatureTable

ITEM_TOWER, USER_TOWER = "item_tower.safetensors", "user_tower.safetensors"
ID_TABLE = "table.weight"  # of the item tower


def split_state(towers: TwoTower) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of the item tower, and of all the rest: user tower, profile, fusion."""
    prefix = "item_tower."
    state = towers.state_dict()
    items = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return items, {k: v for k, v in state.items() if not k.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; an empty file is allowed, for a tower may have no weights."""
    from crossbatch.training import tensor_files  # a server loads towers and never saves them

    tensor_files.save_tensors(path, tensors)
    path.chmod(0o644)  # the library makes files that only their owner may read


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, memory-mapped."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} cannot be read ({error}): export anew") from None


def user_side(
    config: ModelConfig,
    width: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
) -> TwoTower:
    """The user tower alone, for `TwoTower.interests`; it reads vectors of a width, not items."""
    options = tower_options(config.name, config.tower, config.dim, width)

    def towers() -> TwoTower:
        return TwoTower(
            nn.Identity(),
            build(MODELS, "model", {"name": config.name} | options, config.dim),
            history="item_tower",
            user_features=features,
            normalize=config.normalize,
        )

    return _loaded(towers, state)


def item_side(
    config: ModelConfig,
    num_items: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
) -> TwoTower:
    """The item tower over items of its own; `state` holds an id table of so many rows."""

    def towers() -> TwoTower:
        return TwoTower(
            ItemTower(num_items, config.dim, features=features, **config.item),
            nn.Identity(),
            history=config.history,
            normalize=config.normalize,
        )

    return _loaded(towers, {f"item_tower.{name}": value for name, value in state.items()})


@dataclass(frozen=True, slots=True)
class InHistories:
    """Items as histories describe them, for whoever encodes a catalogue."""

    towers: TwoTower

    def items(self, item_ids: Tensor) -> Tensor:
        """What describes items `[N]`, `[N, w]`."""
        return self.towers.described(item_ids)


def _loaded(make: Callable[[], TwoTower], state: Mapping[str, Tensor]) -> TwoTower:
    """Towers with their weights; made without memory first, for a recipe may promise any size."""
    with torch.device("meta"):
        promised = {name: value.shape for name, value in make().state_dict().items()}
    if promised != {name: value.shape for name, value in state.items()}:
        raise BundleError("the bundle's weights do not fit its recipe: export anew")
    towers = make()
    towers.load_state_dict(dict(state))
    return towers.eval().requires_grad_(requires_grad=False)
