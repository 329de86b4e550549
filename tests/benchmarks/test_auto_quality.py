"""The judgement on auto and on bank size rules, against numbers made by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from auto_quality import RULES, write_judgement
from crossbatch import config
from crossbatch.config import Recipe
from crossbatch.errors import DataError
from crossbatch.reproduce.design import STRATEGIES, Design
from crossbatch.reproduce.folder import GridFolder

from ..reproduce.conftest import page_tables

PAPER = Recipe.from_dict(config.PAPER)
USERS = np.random.default_rng(0).random(200).astype(np.float32)


@pytest.fixture
def folder(make_grid_run, tmp_path):
    """Write runs of MIND by strategy: test level, validation level."""

    def write(levels, seeds=(0, 1, 2)):
        for (strategy, capacity), (test, valid) in levels.items():
            for seed in seeds:
                users = test * USERS * (1 + 0.001 * seed)
                make_grid_run(
                    "mind", strategy, seed, users, capacity=capacity,
                    extra={"valid": {"recall@50": valid, "ndcg@50": valid}},
                )  # fmt: skip
        return GridFolder(tmp_path / "grid")

    return write


def rows(folder):
    write_judgement(folder)
    return json.loads((folder.path / "auto.json").read_text())["rows"]


def test_the_best_by_hand_is_chosen_on_validation_users(folder):
    grid = folder({
        ("auto", None): (0.30, 0.2),
        ("in_batch", None): (0.20, 0.5),  # best on validation
        ("uniform", None): (0.40, 0.4),  # lucky on test
        ("balanced", None): (0.90, 0.9),  # none of the four
    })  # fmt: skip
    (row,) = rows(grid)
    assert (row["best"], row["best_on_test"]) == ("in_batch", "uniform")
    assert row["rivals"] == ["uniform", "in_batch"]
    gain = row["gains"]["recall@50"]
    assert gain["relative"] == pytest.approx(0.5)
    assert gain["low"] == pytest.approx(0.5, abs=0.01) == pytest.approx(gain["high"], abs=0.01)
    assert row["verdict"] == "better"
    assert row["test"]["in_batch"]["recall@50"] == pytest.approx(0.2 * 1.001 * USERS.mean())
    assert row["cpu"] == pytest.approx(1.0)
    page = (grid.path / "auto.md").read_text()
    assert "worse than the best choice by hand on 0 of 1 models, level on 0, better on 1" in page


def test_a_loss_beyond_noise_is_called_worse_and_one_within_it_level(folder, make_grid_run):
    grid = folder({("in_batch", None): (0.2, 0.5), ("auto", None): (0.19, 0.5)})
    assert rows(grid)[0]["verdict"] == "worse"
    assert "**worse**" in (grid.path / "auto.md").read_text()
    noise = np.random.default_rng(1)
    for strategy in ("in_batch", "auto"):
        for seed in range(3):
            users = noise.permutation(USERS)  # another order: paired differences are large
            make_grid_run("gru4rec", strategy, seed, users)
    found = {row["model"]: row["verdict"] for row in rows(grid)}
    assert found == {"mind": "worse", "gru4rec": "unclear"}


def test_only_seeds_that_all_have_count(folder, make_grid_run):
    grid = folder({("in_batch", None): (0.2, 0.5), ("auto", None): (0.3, 0.5)}, seeds=(0, 1))
    make_grid_run("mind", "auto", 2, USERS)
    (row,) = rows(grid)
    assert row["seeds"] == [0, 1]
    assert row["gains"]["recall@50"]["relative"] == pytest.approx(0.5)


def test_what_auto_took_and_promised(make_grid_run, tmp_path):
    make_grid_run("mind", "in_batch", 0, USERS)
    path = make_grid_run("mind", "auto", 0, USERS) / "config.json"
    config = json.loads(path.read_text())
    facts = {"in_batch_ms": 2.0, "uniform_column_us": 3.0, "cached_column_us": 1.0}
    sampler, loss = {"name": "mixed", "num_uniform": 64}, {"mask_later": True}
    config["advice"] = {"sampler": sampler, "loss": loss, "facts": facts | {"masking_us": 100.0}}
    path.write_text(json.dumps(config))
    (row,) = rows(GridFolder(tmp_path / "grid"))
    assert row["chosen"] == ["mixed 64 without later items"]
    assert row["promised"] == pytest.approx(1 + (64 * 3e-3 + 0.1) / 2.0)


def test_the_distance_to_the_full_softmax(folder):
    grid = folder({
        ("in_batch", None): (0.2, 0.5), ("auto", None): (0.24, 0.5), ("full", None): (0.25, 0.6),
    })  # fmt: skip
    (row,) = rows(grid)
    assert row["best"] == "in_batch"  # the full softmax is not one of the four
    assert row["ceiling"]["auto"]["relative"] == pytest.approx(0.24 / 0.25 - 1)
    assert row["ceiling"]["best"]["relative"] == pytest.approx(0.2 / 0.25 - 1)
    assert "## The full softmax" in (grid.path / "auto.md").read_text()


def test_a_bank_size_rule_against_fixed_sizes_of_its_own_strategy(folder):
    grid = folder({
        ("in_batch", None): (0.200, 0.50),
        ("balanced", 4): (0.210, 0.60),  # best on validation
        ("balanced", None): (0.220, 0.55),  # on test
        ("cross_batch", 4): (0.900, 0.90),  # another strategy
        ("drift_limited", None): (0.209, 0.10),
    })  # fmt: skip
    (row,) = rows(grid)
    assert row["sizes"] == [0, 4, 76]
    assert (row["best"], row["best_on_test"]) == (4, 76)
    assert row["gains"]["best"]["relative"] == pytest.approx(0.209 / 0.210 - 1, abs=1e-6)
    assert row["gains"]["best_on_test"]["relative"] == pytest.approx(0.209 / 0.220 - 1, abs=1e-6)
    assert row["within"]
    (table,) = page_tables((grid.path / "auto.md").read_text())
    assert table[2][table[0].index("Within 1 %")] == "yes"


def test_more_than_one_per_cent_below_is_a_miss(folder):
    grid = folder({("balanced", None): (0.21, 0.6), ("drift_limited", None): (0.207, 0.9)})
    (row,) = rows(grid)
    assert not row["within"]
    assert "**no**" in (grid.path / "auto.md").read_text()


def test_nothing_to_judge_is_said(folder):
    with pytest.raises(DataError, match="no run of auto or of a bank size rule"):
        write_judgement(folder({("in_batch", None): (0.2, 0.5)}))


@pytest.mark.parametrize("sampler", ["cross_batch", "uniform", "in_batch"])
def test_no_recipe_changes_a_bank_size_rule(sampler, monkeypatch):
    for name, rule in RULES.items():
        monkeypatch.setitem(STRATEGIES, name, rule)
    base = PAPER.changed([f'sampler={{name="{sampler}"}}'])
    if sampler == "cross_batch":
        base = base.changed(["sampler.capacity=640", "sampler.warmup_steps=7"])
    design = Design(base, one_pass=40_000)
    limited = design.run("mind", "drift_limited", 0)
    assert limited.folder == "runs/mind-drift_limited-s0"
    assert limited.recipe.sampler == {
        "name": "cross_batch", "capacity": 10112, "item_gradient": "balanced",
        "warmup_steps": 0, "max_staleness": 0.1,
    }  # fmt: skip
    sized = design.run("mind", "sized_bank", 0).recipe.sampler
    assert sized == limited.recipe.sampler | {"max_repeats": 1.0, "guard": True}
