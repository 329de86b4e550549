"""Values of user features in requests: each is encoded, or refused in one sentence."""

from __future__ import annotations

import polars as pl
import pytest

from crossbatch.data.dataset.encoders import Encoder
from crossbatch.errors import ConfigError
from crossbatch.serving.user_features import encode_profiles

ENCODERS = {
    "taste": Encoder("dense", {"size": 3, "name": "taste"}),
    "age": Encoder("numeric", {"mean": 30.0, "std": 10.0}),
    "tags": Encoder("multi_valued", {"separator": "|"}, pl.Series(["a", "b"])),
}


@pytest.mark.parametrize("value", [[1.0, 2.5, -3.0], "1|2.5|-3", "1 2.5 -3", [1, 2.5, -3]], ids=str)
def test_dense_vectors(value: object) -> None:
    found = encode_profiles(ENCODERS, [{"taste": value}, None])
    assert found is not None
    assert found.rows.tolist() == [0, -1]
    assert found.tables["taste"].values.tolist() == [[1.0, 2.5, -3.0]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("taste", [1.0, 2.0]),
        ("taste", []),
        ("taste", [1.0] * 10_000),
        ("taste", [1e5, 0.0, 0.0]),
        ("taste", [float("nan"), 0.0, 0.0]),
        ("taste", 7),
        ("taste", "a b c"),
        ("age", 10**400),
        ("age", 10**5_000),  # too long even to be printed
        ("age", [1.0]),
        ("age", "old"),
    ],
    ids=lambda value: str(type(value)),
)
def test_values_that_cannot_be_read_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        encode_profiles(ENCODERS, [{name: value}])
    message = str(caught.value)
    assert repr(name) in message
    assert ENCODERS[name].kind in message
    assert len(message) < 250
    assert "\n" not in message
