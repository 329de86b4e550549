"""The search: the same settings for all, chosen on validation users, test users unseen."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from crossbatch.config import Recipe
from crossbatch.errors import ConfigError, DataError
from crossbatch.reproduce.design import Design
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.search import (
    SETTINGS,
    choose,
    read_settings,
    read_trials,
    search_cells,
    write_search,
)

from .conftest import page_tables

DESIGN = Design(
    Recipe.from_dict({"model": {"history_dropout": 0.3}}),
    one_pass=1000,
    models=("mind", "gru4rec"),
    strategies=("in_batch", "balanced"),
    seeds=(0, 1),
)


@pytest.fixture
def searched(tmp_path):
    """Results of a finished search; what each setting reached is `value`."""

    def write(value):
        for cell in search_cells(DESIGN):
            recipe, seed = cell.recipe, cell.recipe.train.seed
            folder = tmp_path / cell.folder
            folder.mkdir(parents=True)
            valid = {"recall@50": value(recipe, cell.folder, seed)}
            (folder / "result.json").write_text(json.dumps({"valid": valid}))
        return tmp_path

    return write


def test_every_combination_gets_the_same_settings():
    tried: dict[tuple[str, str], set] = {}
    for cell in search_cells(DESIGN):
        recipe = cell.recipe
        key = (recipe.model.name, recipe.sampler["name"])
        chosen = (
            recipe.model.normalize,
            recipe.loss.temperature,
            recipe.train.lr,
            recipe.loss.l2,
        )
        tried.setdefault(key, set()).add(chosen)
        assert recipe.model.history_dropout == 0.3  # the base's
        assert recipe.train.max_steps == 6000
        assert not cell.test
    assert len(tried) == 4
    first = next(iter(tried.values()))
    assert len(first) == len(SETTINGS)
    assert all(settings == first for settings in tried.values())


def test_a_narrower_search_keeps_the_strategies_equal():
    cells = search_cells(DESIGN, ["cosine-0.1"])
    tried = {
        cell.folder.split("-", 1)[1].removesuffix(f"-s{cell.recipe.train.seed}") for cell in cells
    }
    assert tried == {"in_batch-cosine-0.1", "balanced-cosine-0.1", "balanced-cosine-0.1-early"}
    with pytest.raises(ConfigError, match=r"--among must name dot, .*got .sine"):
        search_cells(DESIGN, ["dot", "sine"])


def test_a_bank_is_also_tried_early_and_always_in_use_for_most_of_a_run():
    banked = [c.recipe for c in search_cells(DESIGN) if c.recipe.sampler["name"] == "cross_batch"]
    warmups = [recipe.sampler["warmup_steps"] for recipe in banked]
    assert set(warmups) == {1000, 100}  # a pass, and a tenth of one
    short = replace(DESIGN, budget=400)
    assert max(cell.recipe.sampler.get("warmup_steps", 0) for cell in search_cells(short)) == 100


def test_the_highest_mean_over_seeds_wins_for_each_combination(searched):
    """One lucky seed must not decide."""

    def value(recipe, folder, seed):
        if "mind-in_batch-cosine-0.1-s" in folder:
            return 0.30
        if "mind-in_batch-dot-s" in folder:
            return 0.50 if seed == 0 else 0.05
        return 0.2 if "-dot-l2-" in folder else 0.1

    best = choose(read_trials(DESIGN, searched(value)))
    assert best["mind"]["in_batch"].setting == "cosine-0.1"
    assert best["mind"]["in_batch"].mean == pytest.approx(0.3)
    assert best["mind"]["balanced"].setting == "dot-l2"
    assert best["gru4rec"]["in_batch"].setting == "dot-l2"


def test_the_choice_is_written_with_every_number_and_read_back(searched):
    out = searched(lambda recipe, folder, seed: 0.1 + recipe.train.lr + recipe.loss.l2)
    write_search(DESIGN, GridFolder(out))
    rows = json.loads((out / "search.json").read_text())["rows"]
    assert len(rows) == 2 * (len(SETTINGS) + len(SETTINGS) + 2)
    assert all(len(row["values"]) == 2 for row in rows)
    settings = read_settings(out / "settings.toml")
    assert settings == tomllib.loads((out / "settings.toml").read_text())
    chosen = {(row["model"], row["strategy"]): row["setting"] for row in rows if row["chosen"]}
    assert len(chosen) == 4
    assert chosen["mind", "in_batch"] == "dot-fast"
    table, settings_table = page_tables((out / "search.md").read_text())
    line = next(line for line in table if line[:2] == ["MIND", "In-batch"])
    assert line[table[0].index("dot-l2")] == "10.20"  # 0.1 + 0.001 + 0.001
    assert line[table[0].index("dot-early")] == "–"
    assert ["dot-fast", "`model.normalize=false` `loss.temperature=1.0` `train.lr=0.003`"] in (
        settings_table
    )
    assert "**10.30**" in (out / "search.md").read_text()
    tuned = replace(DESIGN, settings=settings).cell("mind", "in_batch", 0).recipe
    assert (tuned.train.lr, tuned.model.normalize) == (0.003, False)


def test_unfinished_trials_do_not_count_and_none_is_an_error(searched, tmp_path):
    with pytest.raises(DataError, match="no finished run"):
        write_search(DESIGN, GridFolder(tmp_path / "empty"))
    out = searched(lambda *_: 0.1)
    for path in out.glob("search/mind-in_batch-dot-s*/result.json"):
        path.unlink()
    assert choose(read_trials(DESIGN, out))["mind"]["in_batch"].setting == "dot-fast"


@pytest.mark.parametrize("text", ["[mind]\nin_batch = 3", "mind = 1", "= broken"])
def test_broken_settings_are_one_sentence(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="settings"):
        read_settings(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "absent.toml")
