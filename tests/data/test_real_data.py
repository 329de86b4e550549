"""Counts of real data sets equal what is published of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from crossbatch.data import PrepareOptions, describe, open_dataset, open_source, prepare

if TYPE_CHECKING:
    from pathlib import Path

PUBLISHED = {
    "ml-1m/ml-1m.zip": (6_040, 3_706, 1_000_209),
    "ml-100k/ml-100k.zip": (943, 1_682, 100_000),
    "amazon2014-book-1m": (38_234, 38_519, 517_167),
    "amazon2014-beauty": (22_332, 12_086, 198_215),
    "amazon2014-electronic-1m": (28_566, 15_743, 241_198),
}
ALL = {"min_item_count": 1, "min_user_count": 1}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_are_the_published_ones(real_data: Path, tmp_path: Path, name: str) -> None:
    counts = prepare(open_source(real_data / name), tmp_path / "out", PrepareOptions(**ALL))[
        "counts"
    ]
    assert (counts["users"], counts["items"], counts["interactions"]) == PUBLISHED[name]


@pytest.mark.parametrize("name", ["amazon2014-book-1m", "amazon2014-beauty"])
def test_five_core_sets_pass_the_five_core_filter_untouched(
    real_data: Path, tmp_path: Path, name: str
) -> None:
    manifest = prepare(open_source(real_data / name), tmp_path / "out", PrepareOptions(core=True))
    assert manifest["counts"]["interactions"] == PUBLISHED[name][2]
    assert manifest["accounting"]["filter_rounds"] == 1


def test_movielens_genres_and_people(real_data: Path, tmp_path: Path) -> None:
    prepare(open_source(real_data / "ml-1m/ml-1m.zip"), tmp_path / "out", PrepareOptions(**ALL))
    dataset = open_dataset(tmp_path / "out")
    assert dataset.item_features["genres"].num_values == 18 + 1
    assert dataset.user_features["occupation"].num_values == 21 + 1
    assert dataset.user_features["age"].num_values == 7 + 1
    gender = np.bincount(dataset.user_features["gender"].values)
    assert gender.tolist() == [0, 4_331, 1_709]  # men, women
    assert dataset.item_titles([1]) == ["American Beauty (1999)"]
    assert dataset.item_counts.sum() + np.diff(dataset.offsets)[4832:].sum() == 1_000_209


def test_shuffled_ties_lose_the_order_of_ids(real_data: Path, tmp_path: Path) -> None:
    rising = {}
    for ties in ("stable", "shuffle"):
        prepare(
            open_source(real_data / "amazon2014-beauty"), tmp_path / ties, PrepareOptions(ties=ties)
        )
        dataset = open_dataset(tmp_path / ties)
        keys = np.array([int(key) for key in dataset.item_keys(range(1, dataset.num_items + 1))])
        held = keys[dataset.items - 1]
        owner = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
        tied = (owner[1:] == owner[:-1]) & (dataset.times[1:] == dataset.times[:-1])
        rising[ties] = float((held[1:] > held[:-1])[tied].mean())
        assert 0.24 < describe(dataset)["order"]["ties"] < 0.48
    assert rising["stable"] == 1.0
    assert 0.48 < rising["shuffle"] < 0.52
