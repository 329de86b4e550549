"""The options of preparation; defaults follow the paper's protocol."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, fields
from typing import TYPE_CHECKING, Any

from crossbatch.data.prepare.sequences import TIE_RULES
from crossbatch.data.prepare.splits import SPLITS, user_bounds
from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COMIREC_SEED = 1230


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """How a log becomes a dataset.

    Attributes:
        min_item_count: Items with fewer interactions are dropped.
        min_user_count: Users with fewer interactions (with kept items) are dropped.
        core: Repeat both filters until nothing changes, rather than once as ComiRec.
        split: "user" (disjoint users), "leave_last_out" or "time".
        valid_share: Share of users (or, by time, of interactions) kept for validation.
        test_share: The same for the test.
        ties: Order of one user's interactions of one moment: "shuffle", "stable" or "item".
        cold_items: Share of items withheld from training users altogether, so that only
            evaluation contains them; for the split by users.
        min_rating: Leave out interactions with a lower rating.
        max_bad_lines: Refused lines that are tolerated: a share below 1, a number from 1 on.
        seed: Of the users' shuffle, the ties and the choice of cold items.
    """

    min_item_count: int = 5
    min_user_count: int = 5
    core: bool = False
    split: str = "user"
    valid_share: float = 0.1
    test_share: float = 0.1
    ties: str = "shuffle"
    cold_items: float = 0.0
    min_rating: float | None = None
    max_bad_lines: float = 0.001
    seed: int = COMIREC_SEED
    min_history: InitVar[int | None] = None  # of earlier releases: refused

    def __post_init__(self, min_history: int | None) -> None:
        if min_history is not None:
            raise ConfigError(
                f"min_history is an option of training, got {min_history} for preparation: leave "
                f"it out here, and train with --set train.min_history={min_history}"
            )
        _one_of("split", self.split, SPLITS)
        _one_of("ties", self.ties, TIE_RULES)
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
        if self.seed < 0:
            raise ConfigError(f"seed must not be negative, got {self.seed}")

    @classmethod
    def merged(cls, defaults: Mapping[str, Any], given: Mapping[str, Any]) -> PrepareOptions:
        """Return the options given (those not None) over a format's own defaults."""
        chosen = {name: value for name, value in given.items() if value is not None}
        known = {field.name for field in fields(cls)}
        unknown = sorted((set(defaults) | set(chosen)) - known)
        if unknown:
            raise ConfigError(f"unknown options {unknown}: choose from {sorted(known)}")
        return cls(**{**defaults, **chosen})


def _one_of(name: str, value: str, names: Iterable[str]) -> None:
    if value not in names:
        raise ConfigError(f"{name} must be one of {', '.join(names)}, got {value!r}")
