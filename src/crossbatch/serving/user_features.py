"""Encode the user features of requests: from plain values to rows that the user tower reads."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl
import torch

from crossbatch.data.dataset.features import encode_table
from crossbatch.errors import ConfigError
from crossbatch.models import FeatureTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from crossbatch.data import Feature
    from crossbatch.data.dataset.encoders import Encoder
    from crossbatch.models import TwoTower

M = TypeVar("M", bound=torch.nn.Module)
MAX_NUMBER = 1e15  # beyond it, standardised values and their squares overflow float32
DTYPES: dict[str, Any] = {"numeric": pl.Float64, "dense": pl.List(pl.Float64)}


@dataclass(frozen=True, slots=True)
class Profiles:
    """Features of users, and which row of them belongs to which user of a batch."""

    tables: Mapping[str, FeatureTable]  # by feature name
    rows: Tensor  # [B] int64, −1 for a user of whom nothing is known


def encode_profiles(
    encoders: Mapping[str, Encoder], users: Sequence[Mapping[str, Any] | None]
) -> Profiles | None:
    """Encode users' values by feature name with the vocabularies and statistics of training.

    A user of whom nothing is known is None or empty; returns None if all are.

    Raises:
        ConfigError: If a name is no feature of the model, or a value cannot be one of its kind.
    """
    known = [number for number, user in enumerate(users) if user]
    for number in known:
        _check_names(users[number] or {}, encoders)
    if not known:
        return None
    columns = [
        pl.Series(
            name,
            [_value(name, encoder, (users[number] or {}).get(name)) for number in known],
            dtype=DTYPES.get(encoder.feature_kind, pl.String),
        )
        for name, encoder in encoders.items()
    ]
    features = encode_table(dict(encoders), pl.DataFrame(columns))
    rows = torch.full((len(users),), -1)
    rows[known] = torch.arange(len(known))
    return Profiles(feature_tables(features), rows)


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
    assert towers.profile is not None
    profile = _shallow(towers.profile)
    profile.encoders = torch.nn.ModuleList(map(_shallow, towers.profile.encoders))
    for name, encoder in zip(sorted(tables), profile.encoders, strict=True):
        setattr(encoder, "table", tables[name])  # noqa: B010 (typed as a tensor by nn.Module)
    twin = _shallow(towers)
    twin.profile = profile
    return twin


def _shallow(module: M) -> M:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)  # otherwise the copy's parts would be the original's
    return twin


def _check_names(user: Mapping[str, Any], encoders: Mapping[str, Encoder]) -> None:
    for name in user:
        if name not in encoders:
            near = get_close_matches(name, list(encoders), n=1)
            known = ", ".join(encoders) or "none"
            hint = f"did you mean {near[0]!r}?" if near else f"its user features are: {known}"
            raise ConfigError(f"{name!r} is not a user feature of this model; {hint}")


def _value(name: str, encoder: Encoder, value: Any) -> Any:
    """One value as the encoder wants it, None where it is missing."""
    if value is None or value == "":
        return None
    try:
        return _parsed(encoder, value)
    except (TypeError, ValueError):
        raise ConfigError(
            f"user feature {name!r} is {encoder.feature_kind}: got {value!r}"
        ) from None


def _parsed(encoder: Encoder, value: Any) -> str | float | list[float]:
    if encoder.feature_kind == "numeric":
        return _number(value)
    if encoder.feature_kind == "dense":
        parts = value.replace("|", " ").split() if isinstance(value, str) else value
        return [_number(part) for part in parts]
    if encoder.feature_kind == "multi_valued" and isinstance(value, (list, tuple)):
        return str(encoder.settings.get("separator", " ")).join(map(str, value))
    if isinstance(value, (list, tuple, dict)):
        raise TypeError
    return str(value)


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= MAX_NUMBER:  # NaN neither
        raise ValueError
    return number
