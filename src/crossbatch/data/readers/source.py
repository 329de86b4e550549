"""What readers take and return: `ReadOptions`, `Source`, and a `Tally` of refused lines.

`reader_errors` turns errors of parsers into one sentence that names the file.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from crossbatch.errors import ConfigError, DataError, out_of_memory

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("categorical", "multi_valued", "numeric", "text", "sentence", "dense")
PARSER_ERRORS = (Exception, pl.exceptions.PanicException)  # a panic of polars is no `Exception`
NOT_OF_THE_FILE = (ConfigError, DataError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class Column:
    """A content column and how to encode it.

    Attributes:
        name: The column's name in its table, and the feature's name in the dataset.
        kind: One of `KINDS`.
        separator: Divides the values of a `multi_valued` column of plain strings.
        model: Folder of the sentence-transformers model of a `sentence` column.
    """

    name: str
    kind: str
    separator: str = "|"
    model: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"column {self.name!r} has kind {self.kind!r}: choose one of {', '.join(KINDS)}"
            )


class Tally:
    """Counts the lines that were read and those refused, by reason; the manifest keeps it.

    Args:
        limit: The largest share (below 1) or number (1 and above) of refused lines.
    """

    def __init__(self, limit: float = 0.001) -> None:
        if limit < 0:
            raise ConfigError(f"max_bad_lines must not be negative, got {limit}")
        self.limit = limit
        self.lines = 0
        self.bad: Counter[str] = Counter()
        self.notes: list[str] = []
        self._examples: dict[str, str] = {}

    def refuse(self, reason: str, count: int, example: str = "") -> None:
        """Count lines that cannot be used; the first example of each reason is kept."""
        if count:
            self.bad[reason] += count
            self._examples.setdefault(reason, example[:80])

    def unreadable(self, reason: str, example: str) -> None:
        """Count a line that never became a row."""
        self.lines += 1
        self.refuse(reason, 1, example)

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add the counts of another tally, given as its `counted`."""
        self.lines += other["lines"]
        for reason, count in other["bad"].items():
            self.refuse(reason, count, other["examples"][reason])

    @property
    def counted(self) -> dict[str, Any]:
        """Everything counted, as plain values."""
        return {"lines": self.lines, "bad": dict(self.bad), "examples": self._examples}

    def check(self) -> None:
        """Raise `DataError` if more lines were refused than the limit allows."""
        allowed = self.limit if self.limit >= 1 else self.limit * self.lines
        if self.bad.total() <= allowed:
            return
        reasons = "; ".join(
            f"{count:,} × {reason}"
            + (f" (e.g. {self._examples[reason]})" if self._examples[reason] else "")
            for reason, count in self.bad.most_common()
        )
        raise DataError(
            f"{self.bad.total():,} of {self.lines:,} lines cannot be used: {reasons}; "
            "mend the source, or raise --max-bad-lines if they may be skipped"
        )


Part = Callable[[Tally], Iterator[pl.DataFrame]]
"""`part(tally)`: the frames of one file of a log."""

Table = Callable[[pl.Series, Tally], pl.DataFrame]
"""`table(keys, tally)`: the content of the given keys, with their key in column `key`."""


@dataclass(frozen=True, slots=True)
class Source:
    """A raw log in a known format.

    Attributes:
        format: The reader's name.
        files: All files that are read, for the manifest's checksums.
        batches: `batches(tally)` yields frames with columns `user`, `item`, `time` and, where the
            reader has them, `rating` and `split` (0 train, 1 valid, 2 test).
        parts: The same frames file by file, where files can be read in parallel.
        time_unit: Unit of numeric times: "auto", "s", "ms", "us", "ns", or "order" (only sorted).
        item_table: The items' content, if any.
        user_table: The users' content, if any.
        item_columns: Which content columns of items become features.
        user_columns: Which content columns of users become features.
        title: The column of `item_table` with the items' titles.
        defaults: Options of preparation that differ for this format.
        expected_rows: Number of interactions where it is known, for progress.
    """

    format: str
    files: tuple[Path, ...]
    batches: Part
    parts: tuple[Part, ...] = ()
    time_unit: str = "auto"
    item_table: Table | None = None
    user_table: Table | None = None
    item_columns: tuple[Column, ...] = ()
    user_columns: tuple[Column, ...] = ()
    title: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    expected_rows: int | None = None

    @property
    def name(self) -> str:
        """The files' names, for messages."""
        return ", ".join(path.name for path in self.files) or self.format


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the caller may say about a source; None leaves it to the reader.

    Attributes:
        user: Column of the users' ids.
        item: Column of the items' ids.
        time: Column of the times; "none" if the order of the log is the time.
        rating: Column of the ratings.
        time_unit: "auto", "s", "ms", "us", "ns" or "order".
        items: File with the items' content.
        users: File with the users' content.
        title: Column of the item table with the titles.
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
    """A format: how to recognise it for certain, and how to open it."""

    recognises: Callable[[Path], bool]
    open: Callable[[Path, ReadOptions], Source]


@contextmanager
def reader_errors(name: str) -> Iterator[None]:
    """Raise errors of a parser inside the body as a `DataError` that names the file."""
    try:
        yield
    except NOT_OF_THE_FILE as error:
        if getattr(error, "errno", None) != errno.EINVAL:
            raise
        raise DataError(f"{name} points outside of itself: it is damaged") from error
    except PARSER_ERRORS as error:
        if out_of_memory(error):
            raise MemoryError(str(error)) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name} cannot be read ({reason}): it is damaged, or not what its name says"
        ) from error


def with_clear_errors(source: Source) -> Source:
    """Return the source with `reader_errors` around the reading of its log and tables."""

    def batches(tally: Tally) -> Iterator[pl.DataFrame]:
        frames = source.batches(tally)
        while True:
            with reader_errors(source.name):  # not around the code that uses the frames
                frame = next(frames, None)
            if frame is None:
                return
            yield frame

    checked = reader_errors(source.name)  # as a decorator it wraps every call anew
    return replace(
        source,
        batches=batches,
        item_table=source.item_table and checked(source.item_table),
        user_table=source.user_table and checked(source.user_table),
    )
