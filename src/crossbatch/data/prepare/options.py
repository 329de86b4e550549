"""The options of preparation; defaults follow the paper's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from crossbatch.data.dataset.shards import MOST_SHARDS
from crossbatch.data.prepare.sequences import TIE_RULES
from crossbatch.data.prepare.splits import SPLITS, user_bounds
from crossbatch.data.prepare.staged_log import MOST_WEIGHT
from crossbatch.errors import ConfigError, check_choice

COMIREC_SEED = 1230


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """How a log becomes a dataset.

    Attributes:
        min_item_count: Items with fewer interactions are dropped.
        min_user_count: Users with fewer interactions (with kept items) are dropped.
        core: Repeat both filters until nothing changes, rather than once as ComiRec.
        split: "user" (disjoint users), "leave_last_out", "time" or "day".
        valid_share: Share of users (by time, of interactions; by day, of the users of the last day
            before the test) kept for validation.
        test_share: The same for the test; not of the split by day.
        test_day: Day of the test, such as "2024-05-31", of the split by day; the last day of the
            log unless given.
        ties: Order of one user's interactions of one moment: "shuffle", "stable" or "item".
        cold_items: Share of items withheld from training users altogether, so that only
            evaluation contains them; for the split by users.
        growing: Also keep the interactions that the minimum counts left out, so that `append` can
            add days to the dataset.
        min_rating: Leave out interactions with a lower rating.
        event_weights: Weight of each kind of event, of a source with kinds. An event of weight 2
            is as likely a target as two events, one of weight 0 is never a target but in the
            histories, and kinds that are not named are left out.
        session_gap: Minutes without an event of a user after which the next begins a new session.
        shards: Divide the training sequences among so many folders, which training reads one after
            the other: for logs that are larger than the disk. None to keep them together.
        max_bad_lines: Refused lines that are tolerated: a share below 1, a number from 1 on.
        seed: Of the users' shuffle, the ties and the choice of cold items.
    """

    min_item_count: int = 5
    min_user_count: int = 5
    core: bool = False
    split: str = "user"
    valid_share: float = 0.1
    test_share: float = 0.1
    test_day: str | None = None
    ties: str = "shuffle"
    cold_items: float = 0.0
    growing: bool = False
    min_rating: float | None = None
    event_weights: Mapping[str, float] | None = None
    session_gap: float | None = None
    shards: int | None = None
    max_bad_lines: float = 0.001
    seed: int = COMIREC_SEED

    def __post_init__(self) -> None:
        check_choice("split", self.split, SPLITS)
        check_choice("ties", self.ties, TIE_RULES)
        for name in ("min_item_count", "min_user_count"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        user_bounds(1, (self.valid_share, self.test_share))
        if not 0 <= self.cold_items < 1:
            raise ConfigError(f"cold_items is a share of 0 up to 1, got {self.cold_items}")
        if self.cold_items and self.split != "user":
            raise ConfigError(
                f"cold_items needs the split by users, got split {self.split!r}: "
                "split by time has cold items of its own"
            )
        if self.test_day is not None and self.split != "day":
            raise ConfigError(f"test_day needs the split by day, got split {self.split!r}")
        if self.growing and (self.cold_items or self.split == "user"):
            given = f"cold_items {self.cold_items}" if self.cold_items else "the split by users"
            raise ConfigError(
                f"days cannot be added to a dataset with {given}: choose --split day, time or "
                "leave_last_out, without --cold-items"
            )
        _check_weights(self.event_weights)
        if self.session_gap is not None and not 0 < self.session_gap < 1e9:
            raise ConfigError(f"session_gap must be a number of minutes, got {self.session_gap}")
        self._check_shards()
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")
        _ = self.test_moment

    def _check_shards(self) -> None:
        if self.shards is None:
            return
        if not 1 <= self.shards <= MOST_SHARDS:
            raise ConfigError(f"shards must be 1 to {MOST_SHARDS:,}, got {self.shards}")
        if self.growing:
            raise ConfigError(
                "days cannot be added to a dataset in shards: leave out --growing or --shards"
            )
        if self.split == "leave_last_out":
            raise ConfigError(
                "shards hold what is needed for training alone, but with split leave_last_out "
                "every sequence is needed for the test: choose --split user, day or time"
            )

    @property
    def test_moment(self) -> int | None:
        """When the day of test begins in UTC, in microseconds since 1970."""
        if self.test_day is None:
            return None
        try:
            start = datetime.strptime(self.test_day, "%Y-%m-%d").replace(tzinfo=UTC)
        except (TypeError, ValueError):
            raise ConfigError(
                f"test_day must be a date such as 2024-05-31, got {self.test_day!r}"
            ) from None
        return int(start.timestamp()) * 1_000_000

    @classmethod
    def merged(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> PrepareOptions:
        """Return the options given (those not None) over a format's own defaults."""
        chosen = {name: value for name, value in given.items() if value is not None}
        known = {field.name for field in fields(cls)}
        unknown = sorted((set(defaults) | set(chosen)) - known)
        if unknown:
            raise ConfigError(f"unknown options {unknown}: choose from {sorted(known)}")
        return cls(**{**defaults, **chosen})


def _check_weights(weights: Mapping[str, float] | None) -> None:
    for kind, weight in (weights or {}).items():
        if not 0 <= weight <= MOST_WEIGHT:
            raise ConfigError(
                f"the weight of event {kind!r} must be 0 (only in histories) to "
                f"{MOST_WEIGHT:g}, got {weight}"
            )
    if weights is not None and not any(weights.values()):
        raise ConfigError(
            f"event_weights must give a kind of event a weight above 0, got {dict(weights)}: "
            "nothing would be a target"
        )
