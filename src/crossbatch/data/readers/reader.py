"""What every reader offers, and what a user may tell it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossbatch.data.readers.source import Column, Source


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a user may say of a source; None leaves it to the reader.

    Attributes:
        user: Column of the users' ids.
        item: Column of the items' ids.
        time: Column of the times; "none" if the log has none and its order counts.
        rating: Column of the ratings.
        time_unit: "auto", "s", "ms", "us", "ns" or "order".
        items: File with the items' content.
        users: File with the users' content.
        title: Column of the item table that names an item.
        item_columns: Features of the items.
        user_columns: Features of the users.
    """

    user: str | None = None
    item: str | None = None
    time: str | None = None
    rating: str | None = None
    time_unit: str | None = None
    items: Path | None = None
    users: Path | None = None
    title: str | None = None
    item_columns: tuple[Column, ...] | None = None
    user_columns: tuple[Column, ...] | None = None


class Reader(NamedTuple):
    """A format.

    Attributes:
        recognises: Whether a path is certainly of this format.
        open: Turns it into a source.
    """

    recognises: Callable[[Path], bool]
    open: Callable[[Path, ReadOptions], Source]
