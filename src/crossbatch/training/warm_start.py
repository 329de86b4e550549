"""Warm start: train on from the weights of an earlier model, on a dataset that has changed since.

start = begin(Path("runs/monday"), folder, read_run)
recipe = start.applied_to(recipe)
start.load_into(towers, dataset)

The id table is matched by item keys and feature tables by the values of their vocabularies, so that
items and values may be new, gone or numbered anew. All other weights are copied. The optimiser's
moments move in the same way with `train.moments = "keep"`, and start from zero otherwise. The bank
starts empty, and q is that of the new dataset.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import ModelConfig, Recipe, check_options, filled
from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError, DataError
from crossbatch.models import ITEM_TOWERS, MODELS, ItemTower, TwoTower
from crossbatch.models.own_towers import is_path
from crossbatch.training import checkpoint
from crossbatch.training.moved_rows import (
    ID_TABLE,
    matching_rows,
    matching_values,
    moved_moments,
    moved_rows,
    start_of_new,
)
from crossbatch.training.optimizers.adam import LEVEL_STEPS
from crossbatch.training.optimizers.row_optimizer import checked_steps
from crossbatch.training.run_folder import (
    START,
    RunFolder,
    best_tensors,
    open_run,
    recipe_and_dataset,
    sealed_entry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.encoders import Encoder
    from crossbatch.training.optimizers import Adam

LOG_TEMPERATURE = "user_tower.log_temperature"  # of towers that divide their queries themselves
COMPARED = (
    *(("model", key) for key in ("name", "item_tower", "model", "dim", "history", "normalize")),
    ("model", "history_dropout"),
    ("model", "item_features"),
    ("model", "user_features"),
    ("model", "context"),
    ("train", "history_length"),
)
RACED = {"dim": "widths", "history_length": "history_lengths"}  # and the option that races it


@dataclass(frozen=True, slots=True)
class EarlierModel:
    """All of a trained model that a later one can start from.

    Attributes:
        config: Its `[model]`, feature names written out.
        history_length: Its `train.history_length`.
        temperature: Of its loss, as learned.
        state: Weights of both towers, by their names in `TwoTower`.
        item_keys: Keys of the rows of its id table, padding included.
        item_counts: How often each of them was chosen, `[len(item_keys)]`.
        item_encoders: Fitted encoders of its item features, by name.
        user_encoders: Likewise of user features and context.
        moments: Of the optimiser, as `Adam.moments` gave them; empty where none were stored.
    """

    config: ModelConfig
    history_length: int
    temperature: float
    state: Mapping[str, Tensor]
    item_keys: Sequence[str]
    item_counts: np.ndarray
    item_encoders: Mapping[str, Encoder]
    user_encoders: Mapping[str, Encoder]
    moments: Mapping[str, Tensor] = field(default_factory=dict)

    def checksum(self) -> str:
        """SHA-256 of the weights' names, shapes and bytes; a run and its bundle have the same."""
        digest = hashlib.sha256()
        for name, value in sorted(self.state.items()):
            digest.update(f"{name} {list(value.shape)} {value.dtype}\n".encode())
            digest.update(value.detach().cpu().contiguous().numpy().data)
        return digest.hexdigest()

    def settings(self) -> dict[str, dict[str, Any]]:
        """What a recipe that starts from this model must have."""
        settings = {
            "model": asdict(self.config),
            "loss": {"temperature": self.temperature},
            "train": {"history_length": self.history_length},
        }
        plain: dict[str, dict[str, Any]] = json.loads(json.dumps(settings))  # lists for tuples
        return plain


def read_run(path: Path) -> EarlierModel:
    """The best model of a run folder; its dataset must still be there, or one that it grew into."""
    recipe, dataset, num_items = recipe_and_dataset(path, grown=True)
    model, temperature = recipe.model, recipe.loss.temperature
    if model.own_code:
        open_run(path)  # which knows code that has changed since
    tensors, _ = best_tensors(path)
    state = checkpoint.below(tensors, "model.")
    moments = checkpoint.below(tensors, checkpoint.MOMENTS)
    try:
        if recipe.loss.learn_temperature:
            log_temperature = state.get(LOG_TEMPERATURE, tensors["loss.log_temperature"])
            temperature = math.exp(float(log_temperature))
        if moments:
            checked_steps(moments)
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            raise ValueError("it holds numbers that are not finite")
    except (KeyError, OverflowError, RuntimeError, ValueError) as error:
        raise DataError(f"{path}/best cannot be started from ({error}): train it again") from None
    parts = (dataset.path / "features" / name for name in ("items", "users", "context"))
    items, users, context = map(read_encoders, parts)
    config = replace(
        model,
        item_features=_written_out(model.item_features, dataset.item_features),
        user_features=_written_out(model.user_features, dataset.user_features),
        context=_written_out(model.context, dataset.context_features),
    )
    return EarlierModel(
        config,
        recipe.train.history_length,
        temperature,
        state,
        dataset.item_keys(range(num_items + 1)),
        dataset.item_counts[: num_items + 1],
        items,
        users | context,
        moments,
    )


def _written_out(names: tuple[str, ...], known: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(known) if names == ("*",) else names


# --- which start a run has ---


@dataclass(frozen=True, slots=True)
class WarmStart:
    """The start of a run from an earlier model.

    Attributes:
        path: Where that model was.
        checksum: Of its weights.
        settings: What the run's recipe takes from it, by section.
        read: Reads the model, which is large; done by the session that starts the run.
        steps: Optimiser steps behind the moments that come along; 0 where they start anew.
    """

    path: str
    checksum: str
    settings: dict[str, dict[str, Any]]
    read: Callable[[], EarlierModel] = field(repr=False, compare=False)
    steps: int = 0

    def record(self) -> dict[str, Any]:
        """What `config.json` and `result.json` keep."""
        return {key: getattr(self, key) for key in ("path", "checksum", "settings", "steps")}

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with the model, history length and temperature of the earlier one.

        Raises:
            ConfigError: If the recipe says something else about the model.
        """
        had = Recipe.from_dict(self.settings)
        for key, asked, value in _differences(recipe, had):
            raise ConfigError(
                f"{key} is {asked!r}, but the model of {self.path} has {value!r}: leave the key "
                "out, or leave --from out to train from the beginning"
            )
        loss = recipe.loss
        if not recipe.says("loss", "temperature"):
            loss = replace(loss, temperature=had.loss.temperature)
        train = replace(recipe.train, history_length=had.train.history_length)
        return replace(recipe, model=had.model, loss=loss, train=train)

    def load_into(self, towers: TwoTower, dataset: Dataset, optimizer: Adam | None = None) -> str:
        """Give new towers over a dataset the weights of the earlier model; say what was matched.

        The optimiser of the towers gets the moments, if they are to come along.
        """
        earlier = self.read()
        if earlier.checksum() != self.checksum:
            raise DataError(
                f"{self.path} was changed since the run began from it: restore it, or start anew "
                "with another --out"
            )
        rows = matching_rows(earlier.item_keys, dataset.item_keys(range(dataset.num_items + 1)))
        known = int((rows[1:] >= 0).sum())
        if not known:
            raise DataError(
                f"no item of {dataset.path} has a key that the model of {self.path} knows: "
                "prepare both with the same column of item ids, or leave --from out"
            )
        if earlier.config.own_code and not torch.equal(rows, torch.arange(len(earlier.item_keys))):
            raise DataError(
                f"the model of {self.path} is {earlier.config.own_code}, whose rows cannot be "
                f"matched with other items than it was trained on, as {dataset.path} has: leave "
                "--from out"
            )
        content = getattr(getattr(towers, "item_tower", None), "content", None)
        names = getattr(content, "names", ())  # a tower may read some by itself, or all
        moves = {ID_TABLE: rows} if ID_TABLE in earlier.state else {}
        try:
            moves |= matching_values(earlier, dataset, self.path, names)
            state = dict(earlier.state) | {
                name: moved_rows(earlier.state[name], rows, start_of_new(earlier, name))
                for name, rows in moves.items()
            }
            if LOG_TEMPERATURE in state:  # the recipe has it
                state[LOG_TEMPERATURE] = towers.state_dict()[LOG_TEMPERATURE]
            towers.load_state_dict(state)
        except (LookupError, RuntimeError) as error:
            raise DataError(
                f"the weights of {self.path} do not fit its settings ({error}): train that model "
                "again, or leave --from out"
            ) from None
        if self.steps and optimizer is not None:
            try:
                optimizer.load_moments(moved_moments(earlier.moments, moves))
            except (LookupError, RuntimeError, ValueError) as error:
                raise DataError(
                    f'train.moments is "keep", but the moments of {self.path} are of another '
                    f'optimiser ({error}): set train.tables as there, or train.moments to "save"'
                ) from None
        new, gone = dataset.num_items - known, len(earlier.item_keys) - 1 - known
        moments = ", with the moments of its optimiser" if self.steps else ""
        return (
            f"training starts from {self.path}{moments}: {known:,} items are known to it, {new:,} "
            f"are new, {gone:,} of its items are gone"
        )


def begin(
    path: Path | None,
    folder: RunFolder,
    read: Callable[[Path], EarlierModel],
    *,
    moments: bool = False,
) -> WarmStart | None:
    """The start of a run from the model at `path`, or None; the same in all sessions of the run.

    With `moments` those of the optimiser come along.

    Raises:
        ConfigError: If the run in the folder began from another model, or from none.
        DataError: If the record of an earlier session was changed, or there is no model at `path`.
    """
    config = folder.config()
    names, what = ("path", "checksum", "settings", "steps"), "which model the run began from"
    recorded = sealed_entry(folder.path, config, START, names, what)
    if path is None:
        if recorded:
            raise ConfigError(
                f"the run in {folder.path} began from {recorded['path']}: resume it with "
                f"--from {recorded['path']}"
            )
        return None
    if config and not recorded:
        raise ConfigError(
            f"the run in {folder.path} began without --from, got --from {path}: resume it without, "
            "or choose another --out"
        )
    place = str(path.resolve())
    continues = folder.newest_checkpoint() is not None or folder.result() is not None
    if recorded and recorded["path"] == place and continues:  # its weights are not needed again
        return WarmStart(**recorded, read=lambda: read(path))
    earlier = read(path)
    start = WarmStart(place, earlier.checksum(), earlier.settings(), lambda: earlier)
    if moments:
        if not earlier.moments:
            raise DataError(
                f'train.moments is "keep", but {path} has no moments of an optimiser, as a bundle '
                'never has: start from a run that was trained with train.moments "save" or "keep", '
                'or set it to "save"'
            )
        start = replace(start, steps=min(checked_steps(earlier.moments), LEVEL_STEPS))
    if recorded and recorded["checksum"] != start.checksum:
        raise ConfigError(
            f"--from {path} holds other weights than those that the run in {folder.path} began "
            f"from, {recorded['path']}: resume with these"
        )
    return replace(start, path=recorded["path"]) if recorded else start


# --- recipes ---


def _differences(recipe: Recipe, had: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield each key that a recipe sets to something else than the earlier model has.

    What `model.name = "auto"` leaves to a race agrees with any model.
    """
    auto = recipe.model.name == "auto"
    raced = {key for key, option in RACED.items() if auto and recipe.model.tower.get(option)}
    for section, key in COMPARED:
        asked, value = (getattr(getattr(each, section), key) for each in (recipe, had))
        left_open = key in raced or asked in ("auto", ("*",)) or not recipe.says(section, key)
        if key.endswith("features"):
            asked, value = sorted(asked), sorted(value)
        if not left_open and asked != value:
            yield f"{section}.{key}", asked, value
    makers: dict[str, Any] = {"item": ITEM_TOWERS.get(had.model.item_tower, ItemTower)}
    if not auto:
        makers["tower"] = MODELS.get(had.model.name)
    for part, make in makers.items():
        asked, value = getattr(recipe.model, part), getattr(had.model, part)
        if make is not None and not (part == "item" and is_path(had.model.item_tower)):
            check_options(make, f"model.{part}", asked)
            value = filled(make, value)
        for key in asked:
            if asked[key] != value.get(key):
                yield f"model.{part}.{key}", asked[key], value.get(key)
