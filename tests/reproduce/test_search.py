"""The search: the same settings for all, chosen on validation users, test users unseen."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace

import pytest

from crossbatch.config import PAPER, Recipe
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import file_checksum
from crossbatch.reproduce.design import Design
from crossbatch.reproduce.experiments import keep, write
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.search import (
    SETTINGS,
    choose,
    read_settings,
    read_trials,
    search_runs,
    write_search,
)

from .conftest import page_tables

DESIGN = Design(
    Recipe.from_dict(PAPER | {"model": {"name": "youtube_dnn", "history_dropout": 0.3}}),
    one_pass=1000,
    models=("mind", "gru4rec"),
    strategies=("in_batch", "balanced"),
    seeds=(0, 1),
)


@pytest.fixture
def searched(tmp_path):
    """Results of a finished search; what each setting reached is `value`."""

    def write(value):
        for run in search_runs(DESIGN):
            recipe, seed = run.recipe, run.recipe.train.seed
            folder = tmp_path / run.folder
            folder.mkdir(parents=True)
            valid = {"recall@50": value(recipe, run.folder, seed)}
            (folder / "result.json").write_text(json.dumps({"valid": valid}))
        return tmp_path

    return write


def test_every_combination_gets_the_same_settings():
    tried: dict[tuple[str, str], set] = {}
    for run in search_runs(DESIGN):
        recipe = run.recipe
        key = (recipe.model.name, recipe.sampler["name"])
        chosen = (
            recipe.model.normalize,
            recipe.loss.temperature,
            recipe.train.lr,
            recipe.loss.l2,
            tuple(recipe.model.tower.items()),
        )
        tried.setdefault(key, set()).add(chosen)
        assert recipe.model.history_dropout == 0.3  # the base's
        assert recipe.train.max_steps == 6000
        assert not run.test
    assert len(tried) == 4
    for name, own in (("mind", 3), ("gru4rec", 0)):  # options of its tower that no other has
        first, second = (found for key, found in tried.items() if key[0] == name)
        assert first == second
        assert len(first) == len(SETTINGS) + own


def test_a_narrower_search_keeps_the_strategies_equal():
    runs = search_runs(replace(DESIGN, among=["cosine-0.1"]))
    tried = {run.folder.split("-", 1)[1].removesuffix(f"-s{run.recipe.train.seed}") for run in runs}
    assert tried == {"in_batch-cosine-0.1", "balanced-cosine-0.1", "balanced-cosine-0.1-early"}
    with pytest.raises(ConfigError, match=r"--among must name dot, .*got .sine"):
        search_runs(replace(DESIGN, among=["dot", "sine"]))


def test_a_bank_is_also_tried_early_and_always_in_use_for_most_of_a_run():
    banked = [
        run.recipe for run in search_runs(DESIGN) if run.recipe.sampler["name"] == "cross_batch"
    ]
    warmups = [recipe.sampler["warmup_steps"] for recipe in banked]
    assert set(warmups) == {1000, 100}  # a pass, and a tenth of one
    short = replace(DESIGN, budget=400)
    assert max(run.recipe.sampler.get("warmup_steps", 0) for run in search_runs(short)) == 100


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
    assert len(rows) == 4 * len(SETTINGS) + 2 * 3 + 2 * 2 + 1  # MIND's own, early banks
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
    tuned = replace(DESIGN, settings=settings).run("mind", "in_batch", 0).recipe
    assert (tuned.train.lr, tuned.model.normalize) == (0.003, False)


def test_bug_a_search_could_not_be_kept(searched, tmp_path):
    """Its runs are no records, so that its pages cannot be made anew from them."""
    home = GridFolder(searched(lambda *_: 0.1))
    write("search", DESIGN, home)
    keep("search", DESIGN, home, tmp_path / "kept")
    for name in ("settings.toml", "search.md", "search.json"):
        assert (tmp_path / "kept" / name).read_bytes() == (home.path / name).read_bytes()


def test_bug_a_changed_search_json_was_accepted(searched):
    out = searched(lambda *_: 0.1)
    write_search(DESIGN, GridFolder(out))
    whole = (out / "search.json").read_text()
    (out / "search.json").write_text(whole.replace("0.1", "0.9", 1))
    with pytest.raises(DataError, match=r"search\.json was changed after it was written"):
        write_search(DESIGN, GridFolder(out))
    for rows in ({}, [7], [{"strategy": "in_batch"}], None):
        (out / "search.json").write_text(json.dumps({"rows": rows or [rows]}))
        with pytest.raises(DataError, match="is not that of a search"):
            write_search(DESIGN, GridFolder(out))


def test_bug_a_changed_result_was_accepted(searched):
    home = searched(lambda *_: 0.1)
    run = home / search_runs(DESIGN)[0].folder
    listed = {"result.json": file_checksum(run / "result.json")}
    (run / "checksums.json").write_text(json.dumps(listed))
    read_trials(DESIGN, home)
    (run / "result.json").write_text(json.dumps({"valid": {"recall@50": 0.9}}))
    with pytest.raises(DataError, match="was changed after it was written"):
        read_trials(DESIGN, home)


@pytest.mark.parametrize("text", ["{}", '{"valid": []}', '{"valid": {"recall@50": "x"}}'])
def test_bug_a_result_without_the_metric_is_one_sentence(searched, text):
    home = searched(lambda *_: 0.1)
    (home / search_runs(DESIGN)[0].folder / "result.json").write_text(text)
    with pytest.raises(DataError, match="has no validation recall@50"):
        read_trials(DESIGN, home)


def test_unfinished_trials_do_not_count_and_none_is_an_error(searched, tmp_path):
    with pytest.raises(DataError, match="no finished run"):
        write_search(DESIGN, GridFolder(tmp_path / "empty"))
    out = searched(lambda *_: 0.1)
    for path in out.glob("search/mind-in_batch-dot-s*/result.json"):
        path.unlink()
    assert choose(read_trials(DESIGN, out))["mind"]["in_batch"].setting == "dot-fast"


def test_a_search_continues_from_search_json(searched):
    out = searched(lambda recipe, folder, seed: 0.1 + recipe.train.lr)
    write_search(replace(DESIGN, models=("gru4rec",)), GridFolder(out))
    assert set(read_settings(out / "settings.toml")) == {"gru4rec"}
    before = json.loads((out / "search.json").read_text())["rows"]
    for path in out.glob("search/gru4rec-*/result.json"):
        path.unlink()  # records keep search.json alone
    again = next(out.glob("search/gru4rec-in_batch-dot-s0"))
    (again / "result.json").write_text(json.dumps({"valid": {"recall@50": 0.9}}))
    write_search(replace(DESIGN, models=("mind",)), GridFolder(out))
    assert set(read_settings(out / "settings.toml")) == {"gru4rec", "mind"}
    rows = json.loads((out / "search.json").read_text())["rows"]
    assert [row for row in rows if row["model"] == "gru4rec"] == before
    write_search(replace(DESIGN, seeds=(0,), budget=400), GridFolder(out))
    best = read_settings(out / "settings.toml")["gru4rec"]["in_batch"]
    assert best == list(SETTINGS["dot"])  # made again, with another result
    assert "of at most 400 to 6,000 steps" in (out / "search.md").read_text()


@pytest.mark.parametrize("text", ["[mind]\nin_batch = 3", "mind = 1", "= broken"])
def test_broken_settings_are_one_sentence(tmp_path, text):
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="settings"):
        read_settings(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_settings(tmp_path / "absent.toml")
