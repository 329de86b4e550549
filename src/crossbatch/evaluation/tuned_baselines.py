"""Settings of a baseline, chosen on validation users.

    tuned = tune_baseline(ds, "rp3beta", exclude_history=True)
    tuned.settings, tuned.value, tuned.fit_cpu_seconds
    evaluate_baselines(ds, "test", names=["rp3beta"], settings={"rp3beta": tuned.settings})

Settings are chosen one after the other, each with the others at their best so far: a grid of three
settings with three values takes 7 fits instead of 27. An open-ended setting goes beyond its grid
while that helps.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from crossbatch.evaluation.baselines import TrainingData, find_baseline
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.popularity import Popularity
from crossbatch.evaluation.recommenders import Recommender

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
    dataset: TrainingData,
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
