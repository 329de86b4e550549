"""The search for a baseline's settings, with a recommender whose quality is known."""

import math

import numpy as np
import pytest
import torch

from crossbatch.errors import ConfigError
from crossbatch.evaluation import baselines
from crossbatch.evaluation.baselines import BASELINES, Baseline
from crossbatch.evaluation.tuned_baselines import tune_baseline

from .conftest import ToyDataset


class Asked(ToyDataset):
    """Remembers which users were asked for."""

    def eval_batches(self, split, **options):
        self.asked = (split, options)
        return super().eval_batches(split, **options)


@pytest.fixture
def dataset():
    return Asked([[1, 2], [2, 3]], 40, rows=[([1], [20]), ([2], [20, 2])])


@pytest.fixture
def with_known_quality(monkeypatch):
    """Lists hold the target 20 only with width = 3 and shift = 5, item 2 with shift = 5."""
    made = []

    def make(dataset, *, width, shift):
        made.append((width, shift))
        listed = [2 if shift == 5 else 30, 20 if (width, shift) == (3, 5) else 31]
        return lambda batch, k, exclude: torch.tensor([listed]).expand(len(batch.history), 2)

    grid = {"shift": (4, 5, 6), "width": (1, 2, 3)}
    monkeypatch.setitem(BASELINES, "known", Baseline(make, grid))
    return made


def test_settings_are_chosen_one_after_the_other(dataset, with_known_quality):
    fits = []
    tuned = tune_baseline(
        dataset,
        "known",
        metric="recall@2",
        max_users=7,
        history_length=9,
        on_fit=lambda done, total: fits.append((done, total)),
    )
    assert tuned.settings == {"shift": 5, "width": 3}
    assert with_known_quality == [(1, 4), (1, 5), (1, 6), (2, 5), (3, 5)]
    assert tuned.value == pytest.approx(np.mean([1.0, 1.0]))
    assert fits == [(n, 5) for n in range(1, 6)]
    assert dataset.asked == ("valid", {"max_users": 7, "history_length": 9})
    assert 0 <= tuned.fit_cpu_seconds <= tuned.tuning_cpu_seconds


@pytest.mark.parametrize(
    ("best", "open_ended", "tried"),
    [
        (32, ("l2",), [8, 4, 16, 32, 64]),
        (1, ("l2",), [8, 4, 2, 1, 0.5]),
        (8, ("l2",), [8, 4]),  # 16 is no better
        (32, (), [8, 4]),
    ],
)
def test_an_open_ended_setting_goes_beyond_its_grid(dataset, monkeypatch, best, open_ended, tried):
    """The target is the later in the list, the farther its setting is from the best one."""
    made = []

    def make(dataset, *, l2):
        made.append(l2)
        place = round(abs(math.log2(l2 / best)))
        listed = [20 if place == n else 30 + n for n in range(8)]
        return lambda batch, k, exclude: torch.tensor([listed]).expand(len(batch.history), 8)

    known = Baseline(make, {"l2": (8, 4)}, open_ended=open_ended)
    monkeypatch.setitem(BASELINES, "known", known)
    tuned = tune_baseline(dataset, "known", metric="ndcg@8")
    assert made == ([*tried, 16] if best == 8 and open_ended else tried)
    assert tuned.settings == {"l2": best if open_ended else 8}


def test_seen_items_can_be_left_out_of_the_comparison(dataset, with_known_quality):
    """Without the repeated target 2 nothing tells the shifts apart, so that the first one stays."""
    tuned = tune_baseline(dataset, "known", metric="recall@2", exclude_history=True)
    assert tuned.settings == {"shift": 4, "width": 1}
    assert tuned.value == 0.0


def test_a_baseline_without_settings_is_fitted_once(dataset):
    tuned = tune_baseline(dataset, "popularity", metric="recall@20")
    assert tuned.settings == {}
    assert (
        tuned.recommend(next(iter(dataset.eval_batches("valid"))), 3, None).tolist()
        == [[2, 1, 3]] * 2
    )


def test_every_grid_begins_with_the_defaults():
    for name, baseline in BASELINES.items():
        defaults = baseline.make.__kwdefaults__ or {}
        for key, values in baseline.grid.items():
            assert values[0] == defaults[key], f"{name}.{key}"


def test_what_cannot_be_had_says_why(dataset, monkeypatch):
    monkeypatch.setattr(baselines, "EASE_MAX_ITEMS", 39)
    with pytest.raises(ConfigError, match="at most 39 of them, and there are 40"):
        tune_baseline(dataset, "ease")
    monkeypatch.setattr(baselines, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'crossbatch\[baselines\]'"):
        tune_baseline(dataset, "als")
