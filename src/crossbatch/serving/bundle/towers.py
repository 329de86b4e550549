"""The two towers of a bundle: weights in safetensors files, shapes from the configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from crossbatch.config import ModelConfig, build
from crossbatch.models import MODELS, ItemTower, TwoTower
from crossbatch.models.build import tower_options
from crossbatch.serving.bundle.manifest import REMEDY, BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor

    from crossbatch.models import FeatureTable

ITEM_TOWER, USER_TOWER = "item_tower.safetensors", "user_tower.safetensors"
ID_TABLE = "table.weight"  # of the item tower


def split_state(towers: TwoTower) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of the item tower, and of all the rest: user tower, user features, fusion."""
    prefix = "item_tower."
    state = towers.state_dict()
    items = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    return items, {k: v for k, v in state.items() if not k.startswith(prefix)}


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; there may be none, for a tower may have no weights."""
    from crossbatch.training import tensor_files  # not loaded by a server, which never saves

    tensor_files.save_tensors(path, tensors)
    path.chmod(0o644)  # the library makes files that only their owner may read


def map_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file, memory-mapped."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path} cannot be read ({error}): {REMEDY}") from None


def load_user_tower(
    config: ModelConfig,
    width: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
) -> TwoTower:
    """The user tower alone, for `TwoTower.interests` over history vectors of this width."""
    options = tower_options(config.name, config.tower, config.dim, width)

    def towers() -> TwoTower:
        return TwoTower(
            nn.Identity(),
            build(MODELS, "model", {"name": config.name} | options, config.dim),
            history="item_tower",
            user_features=features,
            normalize=config.normalize,
        )

    return _load(towers, state)


def load_item_tower(
    config: ModelConfig,
    num_items: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
) -> TwoTower:
    """The item tower over other items; `state` holds an id table of `num_items` + 1 rows."""

    def towers() -> TwoTower:
        return TwoTower(
            ItemTower(num_items, config.dim, features=features, **config.item),
            nn.Identity(),
            history=config.history,
            normalize=config.normalize,
        )

    return _load(towers, {f"item_tower.{name}": value for name, value in state.items()})


@dataclass(frozen=True, slots=True)
class HistoryEncoder:
    """Encodes items as histories read them; `encode_items` takes it in place of towers."""

    towers: TwoTower

    def items(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, w]` of items `[N]`."""
        return self.towers.describe(item_ids)


def _load(make: Callable[[], TwoTower], state: Mapping[str, Tensor]) -> TwoTower:
    """Towers with their weights; shapes are compared first, before any memory is taken."""
    with torch.device("meta"):
        expected = {name: value.shape for name, value in make().state_dict().items()}
    if expected != {name: value.shape for name, value in state.items()}:
        raise BundleError(f"the bundle's weights do not fit its recipe: {REMEDY}")
    towers = make()
    towers.load_state_dict(dict(state))
    return towers.eval().requires_grad_(requires_grad=False)
