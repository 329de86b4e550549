"""`tune`: search by trials of a recipe, pruned by validation curves and resumable.

    study = tune(open_dataset("shop"), Recipe.load("demo"), "study", trials=30)

Each trial is an ordinary run below `STUDY/trials`, with its journal; test users are never
evaluated. Optuna keeps the study in `STUDY/study.db`. The same call resumes a study: a killed trial
continues from its checkpoint, and each value of each trial is drawn by its own generator from the
trials before it, so that an interrupted study ends like an uninterrupted one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import tomli_w
from optuna.trial import TrialState
from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import write_file
from crossbatch.reports.baseline_tables import deciding_metrics
from crossbatch.reports.formatting import NOTHING
from crossbatch.reports.markdown import pipe_table
from crossbatch.reproduce.folder import GridFolder, write_page
from crossbatch.training import DivergedError, fit
from crossbatch.training.build import resolve
from crossbatch.training.progress import Progress
from crossbatch.training.run_folder import LOCK, RunFolder
from crossbatch.tuning.space import Space, default_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset

DATABASE, BEST = "study.db", "best.toml"
UNPRUNED = 4  # trials to compare with before any is pruned
FINISHED = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


def tune(
    dataset: Dataset,
    recipe: Recipe,
    out: Path | str,
    *,
    trials: int,
    space: Space | None = None,
    progress: Callable[[], Progress] = Progress,
    on_trial: Callable[[optuna.Study, optuna.trial.FrozenTrial], None] = lambda *_: None,
) -> optuna.Study:
    """Search until the study has `trials` trials, those of earlier sessions included.

    Args:
        dataset: What to train on; its validation users decide.
        recipe: Where to start: the first trial has its values, as far as the space does.
        out: Study folder; created if absent, continued if it holds this study.
        trials: How many, in all.
        space: What may change; by default `default_space`.
        progress: Creates the progress display of a trial.
        on_trial: Called with every finished trial.

    Raises:
        ConfigError: If the folder holds another study, or a setting cannot be trained at all.
        Interrupted: If Ctrl-C ended a trial; its checkpoint was saved.
    """
    out, space = Path(out), space or default_space(resolve(recipe, dataset))
    if recipe.model.name == "auto":
        raise ConfigError(
            'model.name is "auto", and each trial would choose its own model: train once, then '
            "search with the [model] and train.history_length in that run's config.json"
        )
    if trials < 1:
        raise ConfigError(f"trials must be at least 1, got {trials}")
    space.check(recipe)
    has_files = out.exists() and any(path.name != LOCK for path in out.iterdir())
    if has_files and not (out / DATABASE).is_file():
        raise ConfigError(f"{out} is not empty and holds no study; choose another --out")
    folder = RunFolder(out, resume=True)  # its lock keeps two searches apart
    try:
        study = _open_study(dataset, recipe, space, out)
        while len(study.get_trials(states=tuple(FINISHED))) < trials:
            trial = _next_trial(study)
            _run_trial(study, trial, dataset, recipe, space, out, progress())
            on_trial(study, study.trials[trial.number])
            write_outcome(study, recipe, out)
        write_outcome(study, recipe, out)
        _drop_weights(study, out)
        return study
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise DataError(
            f"{out / DATABASE} cannot be read or written ({reason}): free some space, or restore it"
        ) from error
    finally:
        folder.close()


def _open_study(dataset: Dataset, recipe: Recipe, space: Space, out: Path) -> optuna.Study:
    """Create the study, or open the existing one if recipe, space and dataset are the same."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    resolved = resolve(recipe, dataset)
    warmup = int(resolved.sampler.get("warmup_steps", 0))
    address = URL.create("sqlite", database=str((out / DATABASE).absolute())).render_as_string()
    # Without a pool every connection is closed after use, and none is left open at the end.
    storage = optuna.storages.RDBStorage(address, engine_kwargs={"poolclass": NullPool})
    study = optuna.create_study(
        study_name="crossbatch",
        storage=storage,
        direction="maximize",
        load_if_exists=True,
        # Metrics before the bank is used say little about later ones.
        pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED, n_warmup_steps=warmup),
    )
    about = {
        "recipe": recipe.to_dict(),
        "space": space.describe(),
        "dataset": dataset.manifest["checksum"],
    }
    about = json.loads(json.dumps(about))
    known: dict[str, Any] = study.user_attrs.get("about", about)
    for part, value in about.items():
        if known[part] != value:
            raise ConfigError(
                f"{out} holds a study of another {part}; give it the one it began with, or choose "
                "another --out"
            )
    if not study.trials:
        study.set_user_attr("about", about)
        study.set_user_attr("metric", recipe.train.metric)
        study.enqueue_trial(space.own(resolved))
    return study


def _next_trial(study: optuna.Study) -> optuna.Trial:
    """Return the trial that was killed, if any, else a new one."""
    killed = study.get_trials(states=(TrialState.RUNNING,))
    if killed:
        # ask() only makes new trials; an existing one has no public handle but its id.
        return optuna.Trial(study, killed[0]._trial_id)
    return study.ask()


def _draw(study: optuna.Study, trial: optuna.Trial, space: Space, seed: int) -> list[str]:
    """Return the overrides of a trial; drawing again after a kill gives the same ones."""
    overrides = []
    for place, (key, each) in enumerate(space.keys.items()):
        states = np.random.SeedSequence((seed, trial.number, place)).generate_state(1)
        study.sampler = optuna.samplers.TPESampler(seed=int(states[0]))
        overrides.append(f"{key}={each.draw(trial, key)}")
    return overrides


def _run_trial(
    study: optuna.Study,
    trial: optuna.Trial,
    dataset: Dataset,
    recipe: Recipe,
    space: Space,
    out: Path,
    progress: Progress,
) -> None:
    overrides = _draw(study, trial, space, recipe.train.seed)
    trial.set_user_attr("overrides", overrides)
    path, metric = _trial_path(out, trial.number), recipe.train.metric
    tracker = PruningTracker(trial, set(study.trials[trial.number].intermediate_values))
    try:
        result = fit(
            dataset,
            recipe.changed(overrides),
            path,
            resume=True,
            progress=progress,
            trackers=(tracker,),
            test=False,
        )
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
    except DivergedError:
        study.tell(trial, state=TrialState.FAIL)
    except ConfigError:
        study.tell(trial, state=TrialState.FAIL)
        raise
    else:
        study.tell(trial, deciding_metrics(result)[metric])
    finally:
        progress.stop()
    _drop_weights(study, out)


def _drop_weights(study: optuna.Study, out: Path) -> None:
    """Delete the weights of finished trials: only their metrics are needed."""
    for trial in study.get_trials(deepcopy=False, states=tuple(FINISHED)):
        for weights in ("best", "checkpoints"):
            shutil.rmtree(_trial_path(out, trial.number) / weights, ignore_errors=True)


def _trial_path(out: Path, number: int) -> Path:
    return out / "trials" / f"{number:03d}"


class PruningTracker:
    """A tracker that reports a trial's validation curve to the study and prunes bad trials.

    `reported` are the steps that were reported before a kill.
    """

    def __init__(self, trial: optuna.Trial, reported: set[int]) -> None:
        self._trial, self._reported = trial, reported

    def event(self, event: str, step: int, fields: dict[str, Any]) -> None:
        """Report an evaluation; raises `optuna.TrialPruned` to end the training."""
        if event != "eval":
            return
        if step not in self._reported:
            self._trial.report(fields["value"], step)
        if self._trial.should_prune():
            raise optuna.TrialPruned

    def close(self) -> None:
        """Nothing to finish."""


def write_outcome(study: optuna.Study, recipe: Recipe, out: Path) -> list[Path]:
    """Write `trials.md`, `.csv` and `.json`, and `best.toml` once a trial has finished."""
    rows = [_row(trial) for trial in study.get_trials(states=tuple(FINISHED))]
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
        "state": FINISHED[trial.state],
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
