"""The model files of a bundle: the weights of its two towers, and its feature schemas.

Weights are safetensors files; shapes follow from the configuration. `features/items` and
`features/users` hold the schema and the vocabularies of the features that the model uses, to encode
new items and users, but not the feature values of the dataset's items and users.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from crossbatch.data.dataset.features import SCHEMA, TOKENIZER, read_encoders, read_schema
from crossbatch.files import write_document
from crossbatch.models import ITEM_TOWERS, FeatureTable, Inputs, ItemTower, TwoTower
from crossbatch.models.build import item_tower_class, tower_options, user_tower_class
from crossbatch.models.features import RAGGED
from crossbatch.models.own_towers import find_tower, is_path
from crossbatch.serving.bundle.manifest import REMEDY, BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from crossbatch.config import ModelConfig
    from crossbatch.data.dataset.encoders import Encoder

ITEM_TOWER, USER_TOWER = "item_tower.safetensors", "user_tower.safetensors"
ID_TABLE = "table.weight"  # of the item tower
SHOWN_VALUES = 100  # of a vocabulary, most frequent first
MAX_VALUES = 1 << 24  # of a feature: a vocabulary, or the width of a vector


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
    tower = user_tower_class(config.name, named=False)
    options = tower_options(tower, config.tower, config.dim, width)
    return _load(
        lambda: TwoTower(
            nn.Identity(),
            tower(config.dim, **options),
            history="item_tower",
            user_features=features,
            normalize=config.normalize,
        ),
        state,
        own_code=is_path(config.name),
    )


def load_item_tower(
    config: ModelConfig,
    num_items: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
) -> TwoTower:
    """The item tower over other items; `state` holds an id table of `num_items` + 1 rows."""
    weights = {f"item_tower.{name}": value for name, value in state.items()}
    return _load(
        lambda: TwoTower(
            ItemTower(num_items, config.dim, features=features, **config.item),
            nn.Identity(),
            history=config.history,
            normalize=config.normalize,
        ),
        weights,
    )


def load_own_items(
    config: ModelConfig,
    num_items: int,
    features: Mapping[str, FeatureTable],
    state: Mapping[str, Tensor],
    counts: np.ndarray,
) -> Any:
    """An item tower or a whole model of foreign code, over other items than it was trained with.

    Weights with a row for each trained item get the mean row in their place, in which items count
    by how often they were chosen (`counts` `[trained + 1]`).

    Raises:
        ValueError: If the code is not allowed, or its weights are not these.
    """
    inputs = Inputs(num_items, config.dim, features, weights_follow=True)

    def make() -> Any:
        if config.model:
            return find_tower(config.model, named=False)(inputs, **config.options)
        items = item_tower_class(config.item_tower, named=False)(inputs, **config.item)
        history, normalize = config.history, config.normalize
        return TwoTower(items, nn.Identity(), history=history, normalize=normalize)

    if config.item_tower in ITEM_TOWERS:  # a forged config must not take all memory
        with torch.device("meta"):
            sizes = {name: value.numel() for name, value in make().state_dict().items()}
        by_id = {name for name, value in state.items() if value.ndim and len(value) == len(counts)}
        if any(n not in state or (state[n].numel() != sizes[n] and n not in by_id) for n in sizes):
            raise BundleError(f"the bundle's weights do not fit its recipe: {REMEDY}")
    model = make()
    own, fitted = model.state_dict(), {}
    shares = torch.from_numpy(counts[1:] / max(1.0, float(counts[1:].sum())))
    for name, expected in own.items():
        value = state.get(name)
        if value is not None and value.ndim and len(value) == len(counts) != len(expected):
            value = torch.einsum("r,r...->...", shares.to(value.dtype), value[1:])
            value = value.expand(expected.shape)
        if value is None or value.shape != expected.shape:
            raise BundleError(f"the bundle's weights do not fit {config.own_code}: {REMEDY}")
        fitted[name] = value
    model.load_state_dict(fitted)
    return model.eval().requires_grad_(requires_grad=False)


@dataclass(frozen=True, slots=True)
class HistoryEncoder:
    """Encodes items as histories read them; `encode_items` takes it in place of towers."""

    towers: TwoTower

    def items(self, item_ids: Tensor) -> Tensor:
        """Vectors `[N, w]` of items `[N]`."""
        return self.towers.describe(item_ids)


def _load(
    make: Callable[[], TwoTower], state: Mapping[str, Tensor], *, own_code: bool = False
) -> TwoTower:
    """Towers with their weights; shapes are compared first, before any memory is taken."""
    # Foreign code need not know of tensors without memory.
    with torch.device("cpu" if own_code else "meta"):
        expected = {name: value.shape for name, value in make().state_dict().items()}
    if expected != {name: value.shape for name, value in state.items()}:
        raise BundleError(f"the bundle's weights do not fit its recipe: {REMEDY}")
    towers = make()
    towers.load_state_dict(dict(state))
    return towers.eval().requires_grad_(requires_grad=False)


def copy_schema(source: Path, target: Path, names: Sequence[str]) -> None:
    """Copy schema, vocabularies and tokenizers of the named features; none if there are none."""
    if not names:
        return
    schema = read_schema(source)
    target.mkdir(parents=True)
    kept = {name: schema[name] for name in names}
    write_document(target / SCHEMA, kept)
    for entry in kept.values():
        parts = sorted(source.glob(f"{entry['stem']}.vocabulary.*"))
        for path in (*parts, *source.glob(f"{entry['stem']}{TOKENIZER}")):
            shutil.copyfile(path, target / path.name)


def checked_schema(folder: Path) -> dict[str, Any]:
    """Return kind and size of each feature, as stored; empty without a folder."""
    schema = read_schema(folder, REMEDY)
    for entry in schema.values():
        if type(entry["num_values"]) is not int or not 0 < entry["num_values"] <= MAX_VALUES:
            raise BundleError(f"{folder / SCHEMA} has features of impossible sizes: {REMEDY}")
    return schema


def schema_encoders(folder: Path) -> dict[str, Encoder]:
    """Return the fitted encoders of a bundle's features."""
    return read_encoders(folder) if checked_schema(folder) else {}


def describe_features(folder: Path, encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """Return kind, size and commonest values of each feature."""
    facts = {}
    for name, entry in checked_schema(folder).items():
        vocabulary = encoders[name].vocabulary
        values = [] if vocabulary is None else vocabulary.head(SHOWN_VALUES).to_list()
        facts[name] = {key: entry[key] for key in ("encoder", "kind", "num_values")}
        facts[name]["values"] = values
    return facts


def sample_tables(schema: Mapping[str, Any], rows: int) -> dict[str, FeatureTable]:
    """Placeholder features of the right kinds and widths, to build or trace a tower with."""
    tables = {}
    for name, entry in schema.items():
        kind, size = entry["kind"], entry["num_values"]
        values = np.arange(rows, dtype=np.int64) % size
        if kind in ("numeric", "dense"):
            values = np.ones((rows, size), dtype=np.float32)
        offsets = np.arange(rows + 1, dtype=np.int64) if kind in RAGGED else None
        tables[name] = FeatureTable.from_arrays(kind, values, offsets, size)
    return tables
