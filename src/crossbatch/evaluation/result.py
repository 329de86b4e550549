"""What an evaluation returns: per-user values, means, intervals, corpus-wide measures, segments.

evaluation.means()["recall@50"], evaluation.intervals()["recall@50"]

parts = by_segment(evaluation, user_labels(dataset, "test", "country", evaluation.user_ids))
parts["FR"].intervals()["recall@50"]
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from crossbatch.bootstrap import Interval, mean_intervals, mean_of_defined
from crossbatch.data.dataset.features import read_encoders
from crossbatch.errors import ConfigError
from crossbatch.results import to_native

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crossbatch.data import Dataset


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Metrics of one model on one split, as fractions.

    Keys: `recall@50`, `hit_rate@50`, `precision@50`, `mrr@50`, `map@50`, `ndcg@50`,
    `ndcg_comirec@50`, `ndcg_comirec_master@50`, `novelty@50` and further measures of lists; recall
    of the held-out items of one popularity band as `cold_recall@50`, `tail_…`, `mid_…`, `head_…`;
    and of all lists together `coverage@50`, `popularity_rank@50`, `head_share@50`, `cold_share@50`.
    """

    per_user: dict[str, npt.NDArray[np.float64]]  # [U] each; NaN where undefined for the user
    corpus: dict[str, float]
    num_targets_dropped: int = 0  # targets in the excluded history
    # The same lists and targets with everything left out that the user had before.
    unseen: Evaluation | None = None
    user_ids: npt.NDArray[np.int64] | None = None  # [U] whose values those of `per_user` are
    segments: Mapping[str, Evaluation] = field(default_factory=dict)  # the same for some users
    library: str = "polars"  # of `to_frame`, unless it is told another

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.means().items() if value == value}
        largest = max((int(name.rpartition("@")[2]) for name in shown), default=0)
        names = [f"{name}@{largest}" for name in ("recall", "hit_rate", "ndcg", "mrr")]
        found = ", ".join(f"{name} {shown[name]:.4f}" for name in names if name in shown)
        return f"<Evaluation of {self.num_users:,} users: {found}>"

    def to_frame(self, library: str | None = None) -> Any:
        """All metrics in rows, with 95 % intervals over users.

        Columns are `segment` (empty for all users), `protocol` ("all", or "unseen" with seen items
        left out), `metric`, `value`, `low`, `high` and `users`.

        Args:
            library: "polars", "pandas" or "pyarrow"; by default `self.library`.
        """
        columns = dict.fromkeys(("segment", "protocol", "metric"), pl.String)
        numbers = dict.fromkeys(("value", "low", "high"), pl.Float64)
        rows = [row for part in ("", *self.segments) for row in self._rows(part)]
        schema = columns | numbers | {"users": pl.Int64}
        table = pl.DataFrame(rows, schema=schema, orient="row", strict=False)
        return to_native(table.fill_nan(None), library or self.library)

    def _rows(self, segment: str) -> Iterator[tuple[Any, ...]]:
        found = self.segments[segment] if segment else self
        for protocol, each in (("all", found), ("unseen", found.unseen)):
            if each is None:
                continue
            intervals = each.intervals()
            for name, value in each.means().items():
                low, high = (getattr(intervals.get(name), end, None) for end in ("low", "high"))
                yield segment, protocol, name, value, low, high, each.num_users

    @property
    def num_users(self) -> int:
        """Users counted: those with at least one target."""
        return max((int((~np.isnan(v)).sum()) for v in self.per_user.values()), default=0)

    def means(self) -> dict[str, float]:
        """Mean of each metric over the users for whom it is defined, and the corpus measures."""
        means = {name: mean_of_defined(values) for name, values in self.per_user.items()}
        return means | self.corpus

    def intervals(self) -> dict[str, Interval]:
        """Mean and 95 % bootstrap interval over users of each per-user metric."""
        if not self.per_user:
            return {}
        columns = np.stack(list(self.per_user.values()), axis=1)
        return dict(zip(self.per_user, mean_intervals(columns), strict=True))


ACTIVITY = "activity"
ACTIVITY_BANDS = (1, 5, 10, 20, 50, 100)  # smallest numbers of items before the targets
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
        return _by_activity(lengths[user_ids])
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
        return _by_quarters(numbers, missing=values[:, 1] > 0)
    names = [UNKNOWN, *encoder.known_values().to_list()]
    labels = [str(names[value]) for value in values]
    kept = {label for label, _ in Counter(labels).most_common(MOST_SEGMENTS)}
    return [label if label in kept else OTHER for label in labels]


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
    return {
        label: _part_of(evaluation, names == label)
        for label in sorted(set(labels), key=_segment_place)
    }


def _part_of(evaluation: Evaluation, chosen: np.ndarray) -> Evaluation:
    unseen = evaluation.unseen
    return Evaluation(
        per_user={name: values[chosen] for name, values in evaluation.per_user.items()},
        corpus={},
        unseen=None if unseen is None else _part_of(unseen, chosen),
        user_ids=None if evaluation.user_ids is None else evaluation.user_ids[chosen],
    )


def _segment_place(label: str) -> tuple[bool, float, str]:
    number = label.split()[0].split("–")[0].rstrip("+")
    try:
        return (label in (OTHER, UNKNOWN), float(number), label)
    except ValueError:
        return (label in (OTHER, UNKNOWN), 0.0, label)


def _by_activity(lengths: np.ndarray) -> list[str]:
    ends = [f"–{high - 1}" for high in ACTIVITY_BANDS[1:]]
    names = [f"{low}{end} items" for low, end in zip(ACTIVITY_BANDS, [*ends, "+"], strict=True)]
    return [names[max(0, n - 1)] for n in np.searchsorted(ACTIVITY_BANDS, lengths, side="right")]


def _by_quarters(values: np.ndarray, missing: np.ndarray) -> list[str]:
    known = values[~missing]
    if not len(known):
        return [UNKNOWN] * len(values)
    edges = np.unique(np.quantile(known, np.linspace(0, 1, QUARTERS + 1)))
    places = np.searchsorted(edges[1:-1], values, side="right")
    names = [f"{low:.4g} to {high:.4g}" for low, high in pairwise(edges)]
    names = names or [f"{edges[0]:.4g}"]
    return [UNKNOWN if gone else names[n] for n, gone in zip(places, missing, strict=True)]
