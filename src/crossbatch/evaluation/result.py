"""What an evaluation returns: per-user values, their means and intervals, corpus-wide measures."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from crossbatch.bootstrap import Interval, mean_intervals
from crossbatch.evaluation.popularity import BANDS, Popularity
from crossbatch.frames import to_native


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
    unseen: "Evaluation | None" = None
    user_ids: npt.NDArray[np.int64] | None = None  # [U] whose values those of `per_user` are
    segments: "Mapping[str, Evaluation]" = field(default_factory=dict)  # the same for some users
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
        means = {name: _nanmean(values) for name, values in self.per_user.items()}
        return means | self.corpus

    def intervals(self) -> dict[str, Interval]:
        """Mean and 95 % bootstrap interval over users of each per-user metric."""
        if not self.per_user:
            return {}
        columns = np.stack(list(self.per_user.values()), axis=1)
        return dict(zip(self.per_user, mean_intervals(columns), strict=True))


class CorpusTally:
    """What the lists of all users look like together, counted batch by batch."""

    def __init__(self, popularity: Popularity) -> None:
        self.popularity = popularity
        self.shown = torch.zeros(popularity.num_items + 1, dtype=torch.long)  # times recommended

    def add(self, ranked: Tensor) -> None:
        """Count `[B, k]` recommended ids."""
        self.shown += ranked.reshape(-1).bincount(minlength=len(self.shown))

    def read(self) -> dict[str, float]:
        """Return the measures; NaN where nothing was recommended.

        `coverage`: share of the catalogue that was recommended to at least one user.
        `popularity_rank`: mean over recommended places of the share of items more popular than the
        one recommended (0.5 = no preference, near 0 = only hits). `head_share`, `cold_share`: share
        of the places given to items of that band.
        """
        shown = self.shown[1:].double()
        places = shown / shown.sum()  # NaN throughout if there is no place
        band = self.popularity.band[1:]
        return {
            "coverage": float((shown > 0).double().mean()),
            "popularity_rank": float(places @ self.popularity.rank[1:]),
            "head_share": float(places[band == BANDS.index("head")].sum()),
            "cold_share": float(places[band == BANDS.index("cold")].sum()),
        }


def _nanmean(values: npt.NDArray[np.float64]) -> float:
    """Mean of the defined values; NaN, without a warning, if there is none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")
