"""Baselines with settings chosen on validation users, for a dataset or beside a run.

    tuned = tune_baseline(ds, "rp3beta", exclude_history=True)
    tuned.settings, tuned.value, tuned.fit_cpu_seconds
    evaluate_baselines(ds, "test", names=["rp3beta"], settings={"rp3beta": tuned.settings})

Settings are chosen one after the other, each with the others at their best so far: a grid of three
settings with three values takes 7 fits instead of 27. An open-ended setting goes beyond its grid
while that helps.

    found = measure_baselines([Path("runs/first")], "test")
    found["rp3beta"]["settings"], found["rp3beta"]["unseen"]["metrics"]["recall@50"]

measures them by the rules of a run; `baselines.json` in the run folder keeps what was found, for
the next evaluation and for reports.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import DataError
from crossbatch.evaluation.baselines import BASELINES, check_names, find_baseline
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.list_measures import Popularity
from crossbatch.evaluation.runs import RunEvaluator, content_measures, table_entry
from crossbatch.files import SEAL, read_document, seal_is_broken, sealed, write_document
from crossbatch.training.run_folder import open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crossbatch.data import Dataset
    from crossbatch.evaluation.recommenders import Recommender
    from crossbatch.evaluation.result import Evaluation

MAX_USERS = 2_000
MOST_BEYOND = 5  # values beyond an end of a grid


@dataclass(frozen=True, slots=True)
class TunedBaseline:
    """The best settings that were found.

    Attributes:
        settings: By name.
        value: The metric on the validation users with these settings.
        fit_cpu_seconds: Processor time of one fit with these settings.
        tuning_cpu_seconds: Processor time of the whole search.
        recommend: The baseline fitted with these settings.
    """

    settings: Mapping[str, float]
    value: float
    fit_cpu_seconds: float
    tuning_cpu_seconds: float
    recommend: Recommender


def tune_baseline(
    dataset: Dataset,
    name: str,
    *,
    metric: str = "recall@50",
    max_users: int = MAX_USERS,
    exclude_history: bool = False,
    on_fit: Callable[[int, int], None] | None = None,
    **batch_options: Any,
) -> TunedBaseline:
    """Choose a baseline's settings from its grid by a metric on validation users.

    Args:
        dataset: What to learn from.
        name: One of `BASELINES`.
        metric: Such as recall@50.
        max_users: How many validation users are ranked, always the same random choice.
        exclude_history: Whether items of the history are left out, as in `evaluate`.
        on_fit: Called with the number of fits done and of all, for a progress bar.
        batch_options: Further options of `dataset.eval_batches`, such as `history_length`.

    Raises:
        ConfigError: If the baseline cannot be had for this dataset or on this machine.
    """
    baseline = find_baseline(name, dataset)
    popularity = Popularity.from_counts(dataset.item_counts)
    started, fits = time.process_time(), 0
    num_fits = 1 + sum(len(values) - 1 for values in baseline.grid.values())

    def tried(settings: Mapping[str, float]) -> TunedBaseline:
        nonlocal fits
        began = time.process_time()
        recommend = baseline.make(dataset, **settings)
        fitted = time.process_time() - began
        found = evaluate_recommender(
            recommend,
            dataset.eval_batches("valid", max_users=max_users, **batch_options),
            popularity=popularity,
            ks=(int(metric.partition("@")[2]),),
            exclude_history=exclude_history,
        )
        fits += 1
        if on_fit is not None:
            on_fit(fits, max(fits, num_fits))
        spent = time.process_time() - started
        return TunedBaseline(settings, found.means()[metric], fitted, spent, recommend)

    best = tried({key: values[0] for key, values in baseline.grid.items()})
    for key, values in baseline.grid.items():
        for value in values[1:]:
            other = tried({**best.settings, key: value})
            best = max(best, other, key=lambda each: each.value)  # the earlier one if equal
        factor = {min(values): 0.5, max(values): 2.0}.get(best.settings[key], 1.0)
        for _ in range(MOST_BEYOND if factor != 1 and key in baseline.open_ended else 0):
            further = tried({**best.settings, key: factor * best.settings[key]})
            if further.value <= best.value:
                break
            best = further
    spent = time.process_time() - started
    return dataclasses.replace(best, tuning_cpu_seconds=spent)


KEPT = "baselines.json"
TUNED = ("settings", "fit_cpu_seconds", "tuning_cpu_seconds", "value")


def measure_baselines(
    paths: Sequence[Path | str],
    split: str,
    *,
    names: Sequence[str] = tuple(BASELINES),
    ks: Sequence[int] | None = None,
    data: Path | str | None = None,
    say: Callable[[str], None] = lambda _: None,
    on_fit: Callable[[str, int, int], None] = lambda *_: None,
) -> dict[str, dict[str, Any]]:
    """Tune and measure baselines on the dataset of a run, with its history length and metric.

    Args:
        paths: Run folders. The first one's dataset and recipe are used; `baselines.json` is read
            there, and written there and to the others for which the same holds.
        split: "valid" or "test".
        names: Which baselines.
        ks: List lengths; None for those of training.
        data: Dataset folder, if it is not where training found it.
        say: Gets one sentence for each baseline that cannot be had.
        on_fit: Called with a baseline's name and the numbers of fits done and of all.

    Returns:
        For each, the entries of `table_entry`; `settings`, `fit_cpu_seconds`, `tuning_cpu_seconds`;
        and `value`, the metric that chose the run's best model, on the users that chose it.
    """
    check_names(names)
    if not names:
        return {}
    runs = [open_run(path, data=data) for path in paths]
    evaluators = [RunEvaluator(saved.dataset, saved.recipe) for saved in runs]
    rules = [_rules(evaluator) for evaluator in evaluators]
    alike = [Path(path) / KEPT for path, own in zip(paths, rules, strict=True) if own == rules[0]]
    evaluator, kept, found = evaluators[0], _read_kept(alike[0], rules[0]), {}
    for name in names:
        unavailable = BASELINES[name].unavailable(evaluator.dataset)
        if unavailable:
            say(unavailable)
            continue
        entry = kept.get(name, {})
        entry = entry if entry.get("grid") == _grid(name) else {}
        known = entry.get("splits", {}).get(split, {}).get("metrics", {})
        lengths = tuple(ks or evaluator.ks)
        if not all(f"{measure}@{k}" in known for k in lengths for measure in ("map", "novelty")):
            entry = _measured(name, evaluator, split, entry, partial(on_fit, name), lengths)
            kept[name] = entry
            _write_kept(alike, rules[0], kept, lambda _: None)  # the next one may take minutes
        about = {key: entry[key] for key in TUNED}
        found[name] = entry["splits"][split] | about
    _write_kept(alike, rules[0], kept, say)
    return found


def _rules(evaluator: RunEvaluator) -> dict[str, Any]:
    """All that a baseline's settings and numbers depend on besides its grid."""
    train = evaluator.recipe.train
    return {
        "dataset": evaluator.dataset.manifest["checksum"],
        "history_length": train.history_length,
        "metric": train.metric,
        "exclude_seen": evaluator.exclude_seen,
        "tuning_users": MAX_USERS,
        "eval_users": train.eval_users,
    }


def _read_kept(path: Path, rules: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The entries of `baselines.json` by name; none if it has other rules, or was changed."""
    if not path.is_file():
        return {}
    document = read_document(path, "delete it to measure the baselines again")
    same = {key: document.get(key) for key in rules} == rules
    intact = SEAL in document and not seal_is_broken(document)
    return dict(document["baselines"]) if same and intact else {}


def _write_kept(
    paths: Sequence[Path],
    rules: dict[str, Any],
    entries: dict[str, dict[str, Any]],
    say: Callable[[str], None],
) -> None:
    document = sealed(rules | {"baselines": entries})
    for path in paths:
        try:
            write_document(path, document)
        except (OSError, DataError) as error:
            say(f"{path} was not written, so the next evaluation tunes again: {error}")


def _grid(name: str) -> dict[str, list[float] | list[str]]:
    """What tuning depends on besides the data."""
    baseline = BASELINES[name]
    values = {key: list(values) for key, values in baseline.grid.items()}
    return values | {"open_ended": list(baseline.open_ended)}


def _measured(
    name: str,
    evaluator: RunEvaluator,
    split: str,
    known: dict[str, Any],
    on_fit: Callable[[int, int], None],
    ks: Sequence[int],
) -> dict[str, Any]:
    """Tune a baseline, or fit it with the settings known, and measure it on a split."""
    dataset, train = evaluator.dataset, evaluator.recipe.train
    if known:
        entry, recommend = known, BASELINES[name].make(dataset, **known["settings"])
    else:
        tuned = tune_baseline(
            dataset,
            name,
            metric=train.metric,
            exclude_history=evaluator.exclude_seen,
            on_fit=on_fit,
            history_length=train.history_length,
        )
        recommend = tuned.recommend
        chosen = _evaluated(recommend, evaluator, "valid", train.eval_users or None)
        deciding = chosen.unseen if evaluator.exclude_seen else None
        entry = {
            "grid": _grid(name),
            "settings": dict(tuned.settings),
            "fit_cpu_seconds": tuned.fit_cpu_seconds,
            "tuning_cpu_seconds": tuned.tuning_cpu_seconds,
            "value": (deciding or chosen).means()[train.metric],
        }
    measured = table_entry(_evaluated(recommend, evaluator, split, ks=(*ks, *evaluator.ks)))
    return entry | {"splits": entry.get("splits", {}) | {split: measured}}


def _evaluated(
    recommend: Recommender,
    evaluator: RunEvaluator,
    split: str,
    max_users: int | None = None,
    ks: Sequence[int] | None = None,
) -> Evaluation:
    dataset, length = evaluator.dataset, evaluator.recipe.train.history_length
    return evaluate_recommender(
        recommend,
        dataset.eval_batches(split, history_length=length, max_users=max_users),
        popularity=Popularity.from_counts(dataset.item_counts),
        ks=ks or evaluator.ks,
        measures=content_measures(dataset),
    )
