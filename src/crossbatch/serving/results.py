"""What a recommender answers: lists of named items for people, arrays for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.retrieval import TopK


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """An item of a list; `interest` says which of the user's K vectors it answers to."""

    id: int
    key: str
    title: str
    score: float
    interest: int


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A user's list, best first.

    Attributes:
        items: At most k; fewer only if the catalogue has no more to offer.
        unknown: Keys of the history that are no items of the catalogue.
        popular: Whether nothing was known of the user, so that the list is the most popular items.
    """

    items: list[ScoredItem]
    unknown: list[str]
    popular: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """Lists of B users as arrays; empty slots have item id 0.

    Attributes:
        top: Scores and item ids `[B, k]`.
        interest: Which interest each item answers to, `[B, k]`.
        popular: `[B]`, True where nothing was known of a user.
    """

    top: TopK
    interest: Tensor
    popular: Tensor
