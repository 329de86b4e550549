from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from crossbatch.data import Dataset, describe
from crossbatch.data.dataset.describe import plot

if TYPE_CHECKING:
    from pathlib import Path

Maker = Callable[..., Dataset]
DAY = 86_400


@pytest.fixture(scope="module")
def dataset(make_dataset: Maker) -> Dataset:
    rows = [("u", item, 400 * DAY + step // 2) for step, item in enumerate("abcabc")]
    rows += [("v", item, 401 * DAY + step) for step, item in enumerate("abde")]
    return make_dataset(rows, split="leave_last_out", ties="stable")


def test_numbers_by_hand(dataset: Dataset) -> None:
    facts = describe(dataset)
    assert facts["counts"]["interactions"] == 10
    assert facts["lengths"]["mean"] == 5.0
    assert facts["lengths"]["histogram"] == {"1–4": 1, "5–9": 1}
    assert facts["order"]["ties"] == pytest.approx(3 / 8)  # three pairs of u, none of v
    assert facts["order"]["repeats"] == pytest.approx(3 / 10)
    assert facts["time"] == {"first": "1971-02-05", "last": "1971-02-06"}
    # trained on: a b c a of u, a b of v; d and e are cold
    assert facts["cold"]["items"] == 2
    assert facts["cold"]["valid_targets"] == 0.5  # b of u, d of v
    assert facts["popularity"]["mean"] == pytest.approx(6 / 5)


def test_the_gini_of_equal_items_is_zero_and_of_one_item_near_one(make_dataset: Maker) -> None:
    equal = make_dataset(
        [(f"u{n}", item, step) for n in range(10) for step, item in enumerate("abcde")]
    )
    assert describe(equal)["popularity"]["gini"] == pytest.approx(0.0)
    rows = [(f"u{n}", "a", step) for n in range(50) for step in range(20)]
    rows += [("single", f"x{n}", n) for n in range(40)]
    assert describe(make_dataset(rows))["popularity"]["gini"] > 0.9


def test_positions_are_not_shown_as_dates(make_dataset: Maker) -> None:
    dataset = make_dataset(
        [("u", item, step) for step, item in enumerate("abcdef")], split="leave_last_out"
    )
    assert describe(dataset)["time"] is None


def test_it_is_plain_json(dataset: Dataset) -> None:
    assert json.loads(json.dumps(describe(dataset)))["counts"]["users"] == 2


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_drawn_the_same_each_time(
    dataset: Dataset, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        plot(dataset, tmp_path / f"{name}{suffix}")
    data = (tmp_path / f"a{suffix}").read_bytes()
    assert len(data) > 5_000
    if suffix == ".png":
        assert data == (tmp_path / "b.png").read_bytes()


def test_the_collision_rate_is_the_sum_of_squares(dataset: Dataset) -> None:
    probabilities = np.asarray(dataset.sampler_law)
    assert describe(dataset)["popularity"]["collision"] == pytest.approx(
        float((probabilities**2).sum())
    )
