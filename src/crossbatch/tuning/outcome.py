"""The results of a study: a table of its trials, and the best one as a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tomli_w

from crossbatch.files import write_file
from crossbatch.reports.formatting import NOTHING
from crossbatch.reports.markdown import pipe_table
from crossbatch.reproduce.folder import GridFolder
from crossbatch.reproduce.page import write_page

if TYPE_CHECKING:
    from pathlib import Path

    import optuna

    from crossbatch.config import Recipe

BEST = "best.toml"
STATES = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}


def write_outcome(study: optuna.Study, recipe: Recipe, out: Path) -> list[Path]:
    """Write `trials.md`, `.csv` and `.json`, and `best.toml` once a trial has finished."""
    rows = [_row(trial) for trial in study.trials if trial.state.name in STATES]
    rows.sort(key=lambda row: (row["state"] != "finished", -(row["value"] or 0)))
    metric = recipe.train.metric
    note = (
        f"Validation {metric} in per cent, best first; a pruned trial's is its last. "
        "Trial 0 has the recipe's own values. Test users were not evaluated."
    )
    parts = [_table(rows, metric), note]
    written = write_page(GridFolder(out), "trials", "Search", parts, rows)
    if any(row["state"] == "finished" for row in rows):
        best = study.best_trial
        comment = (
            f"# The best of {len(rows)} trials: number {best.number}, validation {metric} "
            f"{100 * best.values[0]:.2f} %.\n#\n"
            f"#   crossbatch train {BEST} --data DATASET --out RUN\n\n"
        )
        text = tomli_w.dumps(recipe.changed(best.user_attrs["overrides"]).to_dict())
        written.append(write_file(out / BEST, (comment + text).encode()))
    return written


def _row(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    overrides = [text.partition("=") for text in trial.user_attrs.get("overrides", [])]
    return {
        "trial": trial.number,
        "state": STATES[trial.state.name],
        "value": trial.values[0] if trial.values else None,
        "steps": max(trial.intermediate_values, default=0),
        "settings": {key: value for key, _, value in overrides},
    }


def _table(rows: list[dict[str, Any]], metric: str) -> str:
    keys = list(dict.fromkeys(key for row in rows for key in row["settings"]))
    lines = [
        [
            str(row["trial"]),
            row["state"],
            NOTHING if row["value"] is None else f"{100 * row['value']:.2f}",
            f"{row['steps']:,}",
            *(f"`{row['settings'].get(key, '')}`" for key in keys),
        ]
        for row in rows
    ]
    return pipe_table(["Trial", "", metric, "Steps", *keys], lines, words=2)
