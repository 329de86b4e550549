"""Users of an evaluation by a feature or by their activity.

parts = by_segment(evaluation, user_labels(dataset, "test", "country", evaluation.user_ids))
parts["FR"].intervals()["recall@50"]
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError
from crossbatch.evaluation.result import Evaluation

if TYPE_CHECKING:
    from crossbatch.data import Dataset

ACTIVITY = "activity"
BANDS = (1, 5, 10, 20, 50, 100)  # smallest numbers of items before the targets
QUARTERS = 4
MOST_SEGMENTS = 12  # further values are shown together
OTHER, UNKNOWN = "other", "unknown"


def user_labels(dataset: Dataset, split: str, by: str, user_ids: np.ndarray) -> list[str]:
    """The segment of each of the users `[U]` of "valid" or "test".

    `by` is "activity", the number of items before the targets; or a user feature, or a context
    feature as it was at a user's first target; categorical, or numeric by quarters of these users.
    """
    if by == ACTIVITY:
        users, cuts, _ = dataset.part(split)
        lengths = np.zeros(dataset.num_users, dtype=np.int64)
        lengths[users] = cuts - dataset.offsets[users]
        return _bands(lengths[user_ids])
    features = {**dataset.user_features, **dataset.context_features}
    usable = [name for name, each in features.items() if each.kind in ("categorical", "numeric")]
    if by not in usable:
        raise ConfigError(
            f"--by must be {ACTIVITY} or a categorical or numeric feature of users or context "
            f"({', '.join(usable) or 'the dataset has none'}), got {by!r}"
        )
    of_users = by in dataset.user_features
    rows = user_ids if of_users else _first_targets(dataset, split)[user_ids]
    values = np.asarray(features[by].values)[rows]
    encoder = read_encoders(dataset.path / "features" / ("users" if of_users else "context"))[by]
    if features[by].kind == "numeric":
        numbers = values[:, 0] * encoder.settings["std"] + encoder.settings["mean"]
        numbers = np.expm1(numbers) if encoder.settings.get("log") else numbers
        return _quarters(numbers, missing=values[:, 1] > 0)
    names = [UNKNOWN, *encoder.known_values().to_list()]
    return _most([str(names[value]) for value in values])


def _first_targets(dataset: Dataset, split: str) -> np.ndarray:
    """The event of each user's first target, whose context the towers read.  `[num_users]`."""
    events = np.zeros(dataset.num_users, dtype=np.int64)
    for batch in dataset.eval_batches(split, history_length=1):
        assert batch.event_ids is not None
        events[batch.user_ids.numpy()] = batch.event_ids.numpy()
    return events


def by_segment(evaluation: Evaluation, labels: list[str]) -> dict[str, Evaluation]:
    """The evaluation of the users of each label, in the order of their first numbers or names."""
    names = np.array(labels)
    return {label: _of(evaluation, names == label) for label in sorted(set(labels), key=_place)}


def _of(evaluation: Evaluation, chosen: np.ndarray) -> Evaluation:
    unseen = evaluation.unseen
    return Evaluation(
        per_user={name: values[chosen] for name, values in evaluation.per_user.items()},
        corpus={},
        unseen=None if unseen is None else _of(unseen, chosen),
        user_ids=None if evaluation.user_ids is None else evaluation.user_ids[chosen],
    )


def _place(label: str) -> tuple[bool, float, str]:
    number = label.split()[0].split("–")[0].rstrip("+")
    try:
        return (label in (OTHER, UNKNOWN), float(number), label)
    except ValueError:
        return (label in (OTHER, UNKNOWN), 0.0, label)


def _bands(lengths: np.ndarray) -> list[str]:
    ends = [f"–{high - 1}" for high in BANDS[1:]]
    names = [f"{low}{end} items" for low, end in zip(BANDS, [*ends, "+"], strict=True)]
    return [names[max(0, n - 1)] for n in np.searchsorted(BANDS, lengths, side="right")]


def _quarters(values: np.ndarray, missing: np.ndarray) -> list[str]:
    known = values[~missing]
    if not len(known):
        return [UNKNOWN] * len(values)
    edges = np.unique(np.quantile(known, np.linspace(0, 1, QUARTERS + 1)))
    places = np.searchsorted(edges[1:-1], values, side="right")
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    names = names or [f"{edges[0]:.4g}"]
    return [UNKNOWN if gone else names[n] for n, gone in zip(places, missing, strict=True)]


def _most(labels: list[str]) -> list[str]:
    kept = {label for label, _ in Counter(labels).most_common(MOST_SEGMENTS)}
    return [label if label in kept else OTHER for label in labels]
