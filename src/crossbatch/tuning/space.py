"""The search space: ranges and choices by key, in the shape of a recipe.

    [train]
    lr = { low = 0.0003, high = 0.01, log = true }
    [sampler]
    capacity = [512, 1024, 2432]

Every value drawn becomes a `section.key=value` override, as `crossbatch train --set` takes them.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.config import Recipe, read_toml
from crossbatch.errors import ConfigError
from crossbatch.reports.journal import follow

if TYPE_CHECKING:
    from collections.abc import Mapping

    import optuna


RANGE_KEYS = {"low", "high", "log"}
BANKS = (4, 9, 19, 39)  # bank sizes of the default space, in batches


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low` to `high`, whole ones if both ends are."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        numbers = all(isinstance(end, int | float) for end in (self.low, self.high))
        if not numbers or not self.low < self.high or (self.log and self.low <= 0):
            raise ConfigError(
                "a range needs numbers low < high, and low > 0 if log = true, got "
                f"low = {self.low!r}, high = {self.high!r}"
            )

    def draw(self, trial: optuna.Trial, key: str) -> str:
        """Return a value as TOML, with four digits: a search cannot resolve more."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return str(trial.suggest_int(key, self.low, self.high, log=self.log))
        return f"{trial.suggest_float(key, self.low, self.high, log=self.log):.4g}"

    def own(self, value: object) -> float | None:
        """Return the value as a parameter of the search, or None if it is outside the range."""
        fits = isinstance(value, int | float) and self.low <= value <= self.high
        return value if fits and isinstance(value, int | float) else None

    def ends(self) -> list[str]:
        """Return the values that must be valid if the range is."""
        return [str(self.low), str(self.high)]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several values as TOML text: Optuna's choices are scalars, these may be tables."""

    options: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.options:
            raise ConfigError("a list of choices must not be empty")

    def draw(self, trial: optuna.Trial, key: str) -> str:
        """Return one of the values."""
        return str(trial.suggest_categorical(key, self.options))

    def own(self, value: object) -> str | None:
        """Return the value as a parameter of the search, or None if it is not a choice."""
        text = toml_value(value) if value is not None else ""
        return text if text in self.options else None

    def ends(self) -> list[str]:
        """Return the values that must be valid."""
        return list(self.options)


@dataclass(frozen=True, slots=True)
class Space:
    """Ranges and choices by dotted key."""

    keys: Mapping[str, Range | Choice]

    def own(self, recipe: Recipe) -> dict[str, float | str]:
        """Return the recipe's own values where they lie in the space."""
        document = recipe.to_dict()
        found = {k: each.own(follow(document, *k.split("."))) for k, each in self.keys.items()}
        return {key: value for key, value in found.items() if value is not None}

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` if the recipe cannot have one of the keys or values."""
        for key, each in self.keys.items():
            for text in each.ends():
                recipe.changed([f"{key}={text}"])

    def describe(self) -> dict[str, list[str]]:
        """Return the space as JSON, to tell one study from another."""
        return {key: [type(each).__name__, repr(each)] for key, each in self.keys.items()}


def read_space(path: Path | str) -> Space:
    """Read a TOML file whose values are lists of choices or tables `{ low, high, log }`."""
    keys = _parse(read_toml(Path(path), "space"), "")
    if not keys:
        raise ConfigError(f"space {path} is empty: name a key, such as lr below [train]")
    return Space(keys)


def toml_value(value: object) -> str:
    """Return a value as TOML on one line, which `--set` reads and `tomli_w` cannot write."""
    if isinstance(value, dict):
        quoted = {k: k if re.fullmatch(r"[\w-]+", k, re.ASCII) else toml_value(k) for k in value}
        return f"{{{', '.join(f'{quoted[k]} = {toml_value(v)}' for k, v in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(entry) for entry in value)}]"
    return json.dumps(value, ensure_ascii=False)  # a JSON scalar is a TOML scalar


def default_space(recipe: Recipe) -> Space:
    """Return the settings that affect metrics most: learning rate, dropout, temperature, bank size.

    The values of the resolved recipe always lie in the space.
    """
    keys: dict[str, Range | Choice] = {
        "train.lr": _around(recipe.train.lr, 0.0003, 0.01, log=True),
        "model.history_dropout": _around(recipe.model.history_dropout, 0.0, 0.6),
    }
    if recipe.model.normalize:  # other vectors learn their own scale
        keys["loss.temperature"] = _around(recipe.loss.temperature, 0.03, 0.5, log=True)
    if recipe.sampler["name"] == "cross_batch":
        sizes = {size * recipe.train.batch_size for size in BANKS} | {recipe.sampler["capacity"]}
        keys["sampler.capacity"] = Choice(tuple(str(size) for size in sorted(sizes)))
    return Space(keys)


def _around(own: float, low: float, high: float, *, log: bool = False) -> Range:
    return Range(min(own, low), max(own, high), log)


def _parse(section: Mapping[str, Any], prefix: str) -> dict[str, Range | Choice]:
    keys: dict[str, Range | Choice] = {}
    for name, value in section.items():
        key = f"{prefix}{name}"
        try:
            if isinstance(value, list):
                keys[key] = Choice(tuple(toml_value(option) for option in value))
            elif isinstance(value, dict) and value and set(value) <= RANGE_KEYS:
                keys[key] = Range(**value)
            elif isinstance(value, dict):
                keys |= _parse(value, f"{key}.")
            else:
                raise ConfigError(f"expected a list of choices or {{ low, high }}, got {value!r}")
        except (ConfigError, TypeError) as error:
            raise ConfigError(f"space, {key}: {error}") from None
    return keys
