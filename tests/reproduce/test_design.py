"""Which runs an experiment needs; the numbers are the paper's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crossbatch import config
from crossbatch.config import Recipe
from crossbatch.reproduce.design import STRATEGIES, Design, distinct, shortened
from crossbatch.training.auto_model import CANDIDATES

PAPER = Recipe.from_dict(config.PAPER)
DESIGN = Design(PAPER, one_pass=40_000, seeds=(0, 1))


def by_folder(runs):
    return {run.folder: run for run in runs}


def test_table1_is_every_model_with_every_strategy_and_seed():
    runs = by_folder(DESIGN.table1())
    assert len(runs) == 3 * 5 * 2
    assert list(runs)[:2] == ["runs/youtube_dnn-uniform-s0", "runs/youtube_dnn-in_batch-s0"]
    assert all(folder.endswith("-s0") for folder in list(runs)[:15])  # one whole table first
    for folder, run in runs.items():
        model, _, seed = folder.removeprefix("runs/").split("-")
        assert (run.recipe.model.name, f"s{run.recipe.train.seed}") == (model, seed)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("uniform", {"name": "uniform", "num_negatives": 1280}),
        ("in_batch", {"name": "in_batch"}),
        ("mixed", {"name": "mixed", "num_uniform": 1152}),
        ("cross_batch", {"name": "cross_batch", "capacity": 2432, "item_gradient": "paper"}),
        ("balanced", {"name": "cross_batch", "capacity": 2432, "item_gradient": "balanced"}),
        ("deferred", {"name": "cross_batch", "capacity": 2432, "item_gradient": "deferred"}),
    ],
)
def test_strategies_have_the_papers_numbers_at_its_batch_size(strategy, options):
    assert dict(DESIGN.run("mind", strategy, 0).recipe.sampler) == options


def test_table2_has_the_papers_sizes_and_shares_runs_with_table1():
    runs = by_folder(DESIGN.table2())
    sizes = [
        run.recipe.sampler.get("capacity", 0)
        for folder, run in runs.items()
        if folder.startswith(("runs/mind-cross_batch", "runs/mind-in_batch"))
        and folder.endswith("-s0")
    ]
    assert sizes == [0, 128, 512, 1152, 2432, 4992, 10112]
    table1 = by_folder(DESIGN.table1())
    shared = set(runs) & set(table1)
    assert len(shared) == 3 * 3 * 2  # in-batch, and both banked strategies at their usual size
    assert all(runs[folder] == table1[folder] for folder in shared)
    assert len(runs) == 3 * 2 * (1 + 2 * 6)


def test_probes_neither_test_nor_share_folders_with_tables():
    runs = by_folder(DESIGN.probes())
    assert set(runs) == {
        f"probes/{model}-{strategy}-s0"
        for model in ("youtube_dnn", "gru4rec", "mind")
        for strategy in ("in_batch", "cross_batch", "balanced")
    }
    assert all(run.probe and not run.test for run in runs.values())


def test_a_recipe_that_races_towers_gives_each_model_what_the_race_would():
    design = Design(Recipe.load("strong"), one_pass=100)
    for candidate in CANDIDATES.values():
        model = candidate["model"]
        assert design.run(model["name"], "in_batch", 0).recipe.model.tower == model["tower"]
    assert design.run("gru4rec", "in_batch", 0).recipe.model.tower == {}


def test_settings_change_one_combination_alone():
    design = replace(DESIGN, settings={"mind": {"in_batch": ["train.lr=0.5"]}})
    assert design.run("mind", "in_batch", 0).recipe.train.lr == 0.5
    for other in (("mind", "uniform"), ("gru4rec", "in_batch")):
        assert design.run(*other, 0).recipe.train.lr == 0.001
    # A bank of size 0 is the in-batch run, with its settings.
    assert design.run("mind", "cross_batch", 0, 0) == design.run("mind", "in_batch", 0)


def test_what_a_search_does_not_try_takes_the_settings_of_its_relative():
    chosen = {"mind": {"in_batch": ["train.lr=0.5"], "uniform": ["train.lr=0.25"]}}
    design = replace(DESIGN, settings=chosen)
    assert design.run("mind", "auto", 0).recipe.train.lr == 0.5
    assert design.run("mind", "full", 0).recipe.train.lr == 0.25
    chosen["mind"]["balanced"] = ["train.lr=0.75"]
    assert design.run("mind", "deferred", 0).recipe.train.lr == 0.75
    chosen["mind"]["auto"] = ["train.lr=0.125"]
    assert design.run("mind", "auto", 0).recipe.train.lr == 0.125


def test_later_items_are_spared_with_the_settings_of_in_batch():
    design = replace(DESIGN, settings={"mind": {"in_batch": ["train.lr=0.5"]}})
    plain, spared = design.run("mind", "in_batch", 0), design.run("mind", "spared", 0)
    assert spared.folder == "runs/mind-spared-s0"
    assert spared.recipe == plain.recipe.changed(["loss.mask_later=true"]) != plain.recipe


@pytest.mark.parametrize("sampler", ["cross_batch", "uniform", "in_batch"])
def test_no_recipe_changes_the_full_softmax(sampler):
    base = PAPER.changed([f'sampler={{name="{sampler}"}}'])
    full = replace(DESIGN, base=base, num_items=500).run("mind", "full", 0)
    assert full.recipe.sampler == {"name": "uniform", "num_negatives": 500}


def test_the_base_recipes_own_bank_is_the_usual_one():
    base = PAPER.changed(['sampler={name="cross_batch", capacity=640, warmup_steps=7}'])
    design = replace(DESIGN, base=base)
    run = design.run("mind", "balanced", 0)
    assert run.folder == "runs/mind-balanced-s0"
    assert (run.recipe.sampler["capacity"], run.recipe.sampler["warmup_steps"]) == (640, 7)
    assert design.run("mind", "balanced", 0, 19).folder == "runs/mind-balanced-M2432-s0"
    assert design.run("mind", "in_batch", 0).recipe.sampler == {"name": "in_batch"}


def test_options_of_one_models_tower_are_not_anothers():
    base = PAPER.changed(["model.name=mind", "model.tower.interests=2"])
    design = replace(DESIGN, base=base)
    assert design.run("mind", "in_batch", 0).recipe.model.tower == {"interests": 2}
    assert design.run("gru4rec", "in_batch", 0).recipe.model.tower == {}


def test_a_short_run_is_evaluated_often_and_uses_its_bank():
    short = replace(DESIGN, budget=2000).run("mind", "balanced", 0).recipe
    assert (short.train.max_steps, short.train.eval_every) == (2000, 200)
    assert short.sampler["warmup_steps"] == 500
    early = shortened(
        PAPER.changed(['sampler={name="cross_batch", warmup_steps=10}']), 2000, one_pass=40_000
    )
    assert early.sampler["warmup_steps"] == 10
    assert (
        "warmup_steps" not in shortened(PAPER.changed(['sampler={name="in_batch"}']), 9, 1).sampler
    )


def test_distinct_keeps_the_first():
    runs = DESIGN.table1()
    other = replace(runs[0], probe=True)
    assert distinct([*runs, other, *runs]) == runs


def test_every_strategy_is_a_sampler():
    from crossbatch.negatives import SAMPLERS

    assert {strategy.sampler(128, 9)["name"] for strategy in STRATEGIES.values()} == {
        *SAMPLERS,
        "auto",
    }
