"""Encode user features and context of requests: from plain values to rows that towers read."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.features import encode_table
from crossbatch.errors import ConfigError, DataError
from crossbatch.models import FeatureTable, TwoTower

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from crossbatch.data import Feature
    from crossbatch.data.dataset.encoders import Encoder

M = TypeVar("M", bound=torch.nn.Module)
MAX_NUMBER = 1e15  # beyond it, standardised values and their squares overflow float32
MAX_DENSE = 65_504  # dense features are stored in 16 bits
MAX_SHOWN = 60  # characters of a value in a message
NO_ENCODERS: Mapping[str, Encoder] = MappingProxyType({})
DTYPES: dict[str, Any] = {"numeric": pl.Float64, "dense": pl.List(pl.Float64)}


@dataclass(frozen=True, slots=True)
class Profiles:
    """Features of requests, and which row of them belongs to which request of a batch."""

    tables: Mapping[str, FeatureTable]  # by feature name
    rows: Tensor  # [B] int64, −1 for a request of which nothing is known
    told: Tensor | None = None  # [B] bool, whether the caller said anything; else where rows ≥ 0

    @property
    def is_told(self) -> Tensor:
        """`[B]` whether the caller said anything of a request."""
        return self.rows >= 0 if self.told is None else self.told


def encode_profiles(
    encoders: Mapping[str, Encoder],
    users: Sequence[Mapping[str, Any] | None],
    context_encoders: Mapping[str, Encoder] = NO_ENCODERS,
    context: Sequence[Mapping[str, Any] | None] | None = None,
) -> Profiles | None:
    """Encode values by feature name with the vocabularies and statistics of training.

    Of a request of which nothing is known, entries are None or empty; returns None if all are, and
    the model reads no context: what it learned of missing context is then encoded too. The hour and
    the day of a request that does not say them are those of the clock.

    Raises:
        ConfigError: If a name is no feature of the model, or a value cannot be one of its kind.
    """
    for values, known_ones, what in (
        (users, encoders, "user feature"),
        (context or (), context_encoders, "context feature"),
    ):
        for each in values:
            _check_names(each or {}, known_ones, what)
    now, requests = _clock(context_encoders), context or [None] * len(users)
    pairs = list(zip(users, requests, strict=True))
    told = torch.tensor([bool(user or request) for user, request in pairs], dtype=torch.bool)
    users = [{**(user or {}), **now, **(request or {})} for user, request in pairs]
    encoders = {**encoders, **context_encoders}
    known = [number for number, user in enumerate(users) if user or context_encoders]
    if not known:
        return None
    columns = [
        pl.Series(
            name,
            [_value(name, encoder, (users[number] or {}).get(name)) for number in known],
            dtype=DTYPES.get(encoder.kind, pl.String),
        )
        for name, encoder in encoders.items()
    ]
    try:
        features = encode_table(dict(encoders), pl.DataFrame(columns))
    except DataError as error:  # what only the encoder can tell
        raise ConfigError(f"user features or context: {error}") from None
    rows = torch.full((len(users),), -1)
    rows[known] = torch.arange(len(known))
    return Profiles(feature_tables(features), rows, told)


def _clock(encoders: Mapping[str, Encoder]) -> dict[str, Any]:
    """What the clock says of a request, as far as a model reads it."""
    now = datetime.now(UTC)
    clock = {"hour_of_day": now.hour, "day_of_week": now.weekday()}
    return {name: value for name, value in clock.items() if name in encoders}


def feature_tables(features: Mapping[str, Feature]) -> dict[str, FeatureTable]:
    """Features as the tables that models read; raise where a number is not finite."""
    for name, feature in features.items():
        if feature.kind == "dense" and not np.isfinite(feature.values).all():
            raise ConfigError(f"feature {name!r} must hold finite numbers below 65,504")
    return {
        name: FeatureTable.from_arrays(
            feature.kind, feature.values, feature.offsets, feature.num_values
        )
        for name, feature in features.items()
    }


def with_profiles(towers: TwoTower, tables: Mapping[str, FeatureTable]) -> TwoTower:
    """The same towers with the feature tables of other users; weights are shared.

    A copy, because another thread may be using the original.
    """
    if not isinstance(towers, TwoTower):  # `OwnUsers`
        other: TwoTower = towers.with_profiles(tables)
        return other
    assert towers.profile is not None
    profile = _shallow(towers.profile)
    profile.encoders = torch.nn.ModuleList(map(_shallow, towers.profile.encoders))
    profile.of_events = [False] * len(tables)  # all tables have a row for each request
    for name, encoder in zip(sorted(tables), profile.encoders, strict=True):
        setattr(encoder, "table", tables[name])  # noqa: B010 (typed as a tensor by nn.Module)
    twin = _shallow(towers)
    twin.profile = profile
    return twin


def _shallow(module: M) -> M:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)  # otherwise the copy's parts would be the original's
    return twin


def _check_names(values: Mapping[str, Any], encoders: Mapping[str, Encoder], what: str) -> None:
    for name in values:
        if name not in encoders:
            near = get_close_matches(name, list(encoders), n=1)
            known = ", ".join(encoders) or "none"
            hint = f"did you mean {near[0]!r}?" if near else f"its {what}s are: {known}"
            raise ConfigError(f"{name!r} is not a {what} of this model; {hint}")


def _value(name: str, encoder: Encoder, value: Any) -> Any:
    """One value as the encoder wants it, None where it is missing."""
    if value is None or value == "":
        return None
    try:
        return _parsed(encoder, value)
    except (TypeError, ValueError, OverflowError):  # of numbers with hundreds of digits
        raise ConfigError(
            f"feature {name!r} must be {_wanted(encoder)}, got {_shown(value)}"
        ) from None


def _parsed(encoder: Encoder, value: Any) -> str | float | list[float]:
    if encoder.kind == "numeric":
        return _number(value, MAX_NUMBER)
    if encoder.kind == "dense":
        parts = value.replace("|", " ").split() if isinstance(value, str) else value
        numbers = [_number(part, MAX_DENSE) for part in parts]
        if len(numbers) != encoder.settings["size"]:
            raise ValueError
        return numbers
    if encoder.kind == "multi_valued" and isinstance(value, (list, tuple)):
        return str(encoder.settings.get("separator", " ")).join(map(str, value))
    if isinstance(value, (list, tuple, dict)):
        raise TypeError
    return str(value)


def _number(value: Any, largest: float) -> float:
    number = float(value)
    if not abs(number) <= largest:  # NaN neither
        raise ValueError
    return number


def _wanted(encoder: Encoder) -> str:
    """What a value of the encoder's kind is, for an error message."""
    if encoder.kind == "numeric":
        return f"a number of at most {MAX_NUMBER:g} (it is numeric)"
    if encoder.kind == "dense":
        return f"{encoder.settings['size']} numbers of at most {MAX_DENSE:,} (it is dense)"
    return f"one value, not a list (it is {encoder.kind})"


def _shown(value: Any) -> str:
    """A value for an error message: the beginning of a long one."""
    try:
        text = repr(value)
    except ValueError:  # an integer beyond Python's limit of digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}… ({len(text):,} characters)"
