"""Choose settings on validation users, from one table and in one way for every combination.

    run_grid(search_runs(design), dataset, out, jobs=2)
    write_search(design, GridFolder(out))      # search.md, .csv, .json and settings.toml

A search may be done a part at a time, or continue from records: `search.json` keeps the trials
whose runs are not asked for or not there any more.

Test users are never evaluated. Each model × strategy gets the setting of the highest validation
metric, averaged over seeds; `--settings settings.toml` then applies it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import tomli_w

from crossbatch.config import read_toml
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import read_document, seal_is_broken, write_file
from crossbatch.reports.baseline_tables import deciding_metrics
from crossbatch.reports.formatting import NOTHING
from crossbatch.reports.markdown import pipe_table
from crossbatch.reports.runs import read_run
from crossbatch.reports.variants import model_title, position
from crossbatch.reproduce.design import (
    MODELS,
    STRATEGIES,
    Design,
    PlannedRun,
    shortened,
    strategy_title,
)
from crossbatch.reproduce.folder import GridFolder, write_page

STEPS = 6000  # of a search run unless the design has a budget; its warm-up is cut in proportion

# Dot products are the paper's; with normalised vectors an L2 penalty on their lengths is constant.
SETTINGS: dict[str, tuple[str, ...]] = {
    "dot": ("model.normalize=false", "loss.temperature=1.0", "train.lr=0.001"),
    "dot-fast": ("model.normalize=false", "loss.temperature=1.0", "train.lr=0.003"),
    "dot-l2": ("model.normalize=false", "loss.temperature=1.0", "train.lr=0.001", "loss.l2=0.001"),
    "cosine-0.1": ("model.normalize=true", "loss.temperature=0.1", "train.lr=0.001"),
    "cosine-0.1-fast": ("model.normalize=true", "loss.temperature=0.1", "train.lr=0.003"),
    "cosine-0.05": ("model.normalize=true", "loss.temperature=0.05", "train.lr=0.001"),
    "cosine-0.05-fast": ("model.normalize=true", "loss.temperature=0.05", "train.lr=0.003"),
}

# MIND as published for Books ends in a ReLU and lets all users begin as nearly one vector, and both
# slow it down; it is also tried without either.
PLAIN_MIND = ("model.tower.relu=false", "model.tower.bias_start=zeros", "model.tower.readout=soft")
MODEL_SETTINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "mind": {
        f"{name}-plain": SETTINGS[name] + PLAIN_MIND
        for name in ("dot-fast", "cosine-0.1", "cosine-0.1-fast")
    }
}

# A bank may also be read early, after this share of a pass instead of a whole one.
EARLY = 0.1
EARLY_SETTINGS = ("dot", "cosine-0.1", "cosine-0.1-plain")


def settings_of(model: str, strategy: str, one_pass: int) -> dict[str, tuple[str, ...]]:
    """The settings that a model is tried with, by name: the same for all strategies but banks."""
    settings = SETTINGS | MODEL_SETTINGS.get(model, {})
    if not STRATEGIES[strategy].banked:
        return settings
    early = f"sampler.warmup_steps={max(1, round(EARLY * one_pass))}"
    tried = [name for name in EARLY_SETTINGS if name in settings]
    return settings | {f"{name}-early": (*settings[name], early) for name in tried}


class Trial(NamedTuple):
    """One setting of one combination and what it reached on the validation users."""

    model: str
    strategy: str
    setting: str
    overrides: Sequence[str]
    values: Sequence[float]  # one per seed
    runs: Sequence[str]  # folders
    steps: int  # at most

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.values)


def search_runs(design: Design) -> list[PlannedRun]:
    """Short runs of every model × strategy with every setting, or with those of `design.among`."""
    names, among = [*SETTINGS, *(n for own in MODEL_SETTINGS.values() for n in own)], design.among
    if unknown := set(among) - set(names):
        raise ConfigError(f"--among must name {', '.join(names)}, got {min(unknown)!r}")
    return [
        _run(design, model, strategy, setting, seed)
        for seed in design.seeds
        for model in design.models
        for strategy in design.strategies
        for setting in settings_of(model, strategy, design.one_pass)
        if not among or setting.removesuffix("-early") in among
    ]


def read_trials(design: Design, out: Path) -> list[Trial]:
    """What the finished search runs reached; a setting without a result is left out."""
    trials, metric = [], design.base.train.metric
    for model, strategy in product(design.models, design.strategies):
        for setting, overrides in settings_of(model, strategy, design.one_pass).items():
            values = {}
            for seed in design.seeds:
                folder = _run(design, model, strategy, setting, seed).folder
                if (out / folder / "result.json").is_file():
                    result = read_run(out / folder).result
                    try:
                        values[folder] = float(deciding_metrics(result)[metric])
                    except (KeyError, TypeError, ValueError):
                        raise DataError(
                            f"{out / folder} has no validation {metric}: train the run again"
                        ) from None
            if values:
                scores, runs, steps = [*values.values()], [*values], design.budget or STEPS
                trials.append(Trial(model, strategy, setting, overrides, scores, runs, steps))
    return trials


def earlier_trials(out: Path) -> list[Trial]:
    """The trials that `search.json` holds."""
    path = out / "search.json"
    document = read_document(path, "search again") if path.is_file() else {"rows": []}
    if seal_is_broken(document):
        raise DataError(f"{path} was changed after it was written: restore it, or search again")
    try:
        rows = [{"steps": 0, **row} for row in document["rows"] if row["strategy"] in STRATEGIES]
        return [Trial(*(row[field] for field in Trial._fields)) for row in rows]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path} is not that of a search ({error!r}): search again") from None


def merged(found: Sequence[Trial], earlier: Sequence[Trial]) -> list[Trial]:
    """All trials in the order of the tables; one that was made again counts as it is now."""
    trials = {trial[:3]: trial for trial in (*earlier, *found)}

    def place(trial: Trial) -> tuple[object, ...]:
        setting = position(trial.setting, settings_of(trial.model, "balanced", 1))
        model = position(trial.model, MODELS), trial.model
        return (*model, position(trial.strategy, STRATEGIES), setting, trial.setting)

    return sorted(trials.values(), key=place)


def choose(trials: Sequence[Trial]) -> dict[str, dict[str, Trial]]:
    """The best trial by model and strategy; of equals the one nearer the top of `SETTINGS`."""
    best: dict[str, dict[str, Trial]] = {}
    for trial in trials:
        row = best.setdefault(trial.model, {})
        if trial.strategy not in row or trial.mean > row[trial.strategy].mean:
            row[trial.strategy] = trial
    return best


def write_search(design: Design, folder: GridFolder) -> list[Path]:
    """Write a page with every number (and as CSV and JSON), and `settings.toml` with the choice."""
    trials = merged(read_trials(design, folder.path), earlier_trials(folder.path))
    if not trials:
        raise DataError(f"{folder.path}/search holds no finished run; run the search with --data")
    best, metric = choose(trials), design.base.train.metric
    rows = [
        {
            **trial._asdict(),
            "mean": trial.mean,
            "chosen": best[trial.model][trial.strategy] is trial,
        }
        for trial in trials
    ]
    lengths = sorted({trial.steps for trial in trials if trial.steps})
    seeds = sorted({len(trial.values) for trial in trials})
    note = (
        f"Best validation {metric} of at most {_range(lengths)} steps, in per cent; mean over "
        f"{_range(seeds)} seed(s). Bold: chosen. Test users were not looked at."
    )
    overrides = {trial.setting: trial.overrides for trial in trials}
    lines = [[name, "`" + "` `".join(values) + "`"] for name, values in overrides.items()]
    settings = pipe_table(["Setting", "Overrides"], lines, words=2)
    parts = [_table(trials, best), note, "## Settings", settings]
    chosen = {
        model: {strategy: list(trial.overrides) for strategy, trial in row.items()}
        for model, row in best.items()
    }
    comment = (
        f"# Chosen by `crossbatch reproduce search` on validation {metric}: see search.md.\n\n"
    )
    return [
        *write_page(folder, "search", "Search for settings", parts, rows),
        write_file(folder.path / "settings.toml", (comment + tomli_w.dumps(chosen)).encode()),
    ]


def _range(numbers: Sequence[int]) -> str:
    ends = dict.fromkeys((numbers[0], numbers[-1])) if numbers else {}
    return " to ".join(f"{number:,}" for number in ends)


def _table(trials: Sequence[Trial], best: Mapping[str, Mapping[str, Trial]]) -> str:
    names = list(dict.fromkeys(trial.setting for trial in trials))
    lines: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        head = [model_title(trial.model), strategy_title(trial.strategy)]
        line = lines.setdefault(trial[:2], head + [NOTHING] * len(names))
        bold = "**" if best[trial.model][trial.strategy] is trial else ""
        line[2 + names.index(trial.setting)] = f"{bold}{100 * trial.mean:.2f}{bold}"
    return pipe_table(["Model", "Negatives", *names], [*lines.values()], words=2)


def read_settings(path: Path) -> dict[str, dict[str, list[str]]]:
    """Read a `settings.toml`: overrides by model and strategy."""
    document = read_toml(path, "settings")
    for model, row in document.items():
        lists = row.values() if isinstance(row, dict) else [None]
        if not all(isinstance(v, list) and all(isinstance(e, str) for e in v) for v in lists):
            raise ConfigError(
                f"[{model}] of {path} must give lists of section.key=value by strategy, got {row!r}"
            )
    return document


def _run(design: Design, model: str, strategy: str, setting: str, seed: int) -> PlannedRun:
    overrides = settings_of(model, strategy, design.one_pass)[setting]
    trial = replace(design, settings={model: {strategy: overrides}}, budget=None)
    run = trial.run(model, strategy, seed)
    recipe = shortened(run.recipe, design.budget or STEPS, design.one_pass)
    name = run.folder.removeprefix("runs/").removesuffix(f"-s{seed}")
    return PlannedRun(f"search/{name}-{setting}-s{seed}", recipe, test=False)
