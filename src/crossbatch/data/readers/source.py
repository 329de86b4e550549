"""What readers take and return: `ReadOptions`, `Source`, and a `Tally` of refused lines.

`reader_errors` turns errors of parsers into one sentence that names the file.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from crossbatch.data.dataset.tokens import MAX_TOKENS
from crossbatch.errors import ConfigError, DataError, out_of_memory, reason_of
from crossbatch.remote import local_path

KINDS = ("categorical", "multi_valued", "numeric", "text", "tokens", "sentence", "dense")
# context that times (in UTC) and sessions tell
CLOCK = ("hour_of_day", "day_of_week", "since_last", "session_items")
PARSER_ERRORS = (Exception, pl.exceptions.PanicException)  # a panic of polars is no `Exception`
NOT_OF_THE_FILE = (ConfigError, DataError, OSError, MemoryError)


@dataclass(frozen=True, slots=True)
class Column:
    """A content column and how to encode it.

    Attributes:
        name: The column's name in its table, and the feature's name in the dataset.
        kind: One of `KINDS`.
        separator: Divides the values of a `multi_valued` column of plain strings.
        model: Folder of the sentence-transformers model of a `sentence` column; tokenizer file of
            a `tokens` column, or empty to train one on the column.
        max_tokens: Most token ids of a row of a `tokens` column.
    """

    name: str
    kind: str
    separator: str = "|"
    model: str = ""
    max_tokens: int = MAX_TOKENS

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"column {self.name!r} has kind {self.kind!r}: choose one of {', '.join(KINDS)}"
            )
        if not 4 <= self.max_tokens <= 8192:
            raise ConfigError(f"max_tokens must be 4 to 8192, got {self.max_tokens}")


class Tally:
    """Counts the lines that were read, those refused, and those left out; the manifest keeps it.

    Args:
        limit: The largest share (below 1) or number (1 and above) of refused lines.
    """

    def __init__(self, limit: float = 0.001) -> None:
        if limit < 0:
            raise ConfigError(f"max_bad_lines must not be negative, got {limit}")
        self.limit = limit
        self.lines = 0
        self.bad: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()  # on purpose: "below_rating", "other_events"
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
        self.left_out.update(other["left_out"])
        for reason, count in other["bad"].items():
            self.refuse(reason, count, other["examples"][reason])

    @property
    def counted(self) -> dict[str, Any]:
        """Everything counted, as plain values."""
        return {
            "lines": self.lines,
            "bad": dict(self.bad),
            "left_out": dict(self.left_out),
            "examples": self._examples,
        }

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
        content_files: Which of them are no log: content and impressions, which may be read again
            with a further day.
        batches: `batches(tally)` yields frames with columns `user`, `item`, `time` and, where the
            reader has them, `rating`, `split` (0 train, 1 valid, 2 test) and `event_columns`.
        parts: The same frames file by file, where files can be read in parallel.
        time_unit: Unit of numeric times: "auto", "s", "ms", "us", "ns", or "order" (only sorted).
        item_table: The items' content, if any.
        user_table: The users' content, if any.
        item_columns: Which content columns of items become features.
        user_columns: Which content columns of users become features.
        item_vectors: Files of precomputed vectors of the items, by the name of their feature; see
            `data.dataset.vectors`.
        title: The column of `item_table` with the items' titles.
        defaults: Options of preparation that differ for this format.
        expected_rows: Number of interactions where it is known, for progress.
        event_columns: Which of `event` (its kind), `weight`, `session` and `impressions` (lists of
            items that were shown) the frames have.
        shown: `shown()` yields frames of a second file of impressions, with columns `request` and
            `impressions`; the log's frames have a column `request` then.
        context: Context columns of events; the frames have a column `context.NAME` of each.
        clock: Context that times tell, names in `CLOCK`.
    """

    format: str
    files: tuple[Path, ...]
    batches: Part
    content_files: tuple[Path, ...] = ()
    parts: tuple[Part, ...] = ()
    time_unit: str = "auto"
    item_table: Table | None = None
    user_table: Table | None = None
    item_columns: tuple[Column, ...] = ()
    user_columns: tuple[Column, ...] = ()
    item_vectors: Mapping[str, Path] = field(default_factory=dict)
    title: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    expected_rows: int | None = None
    event_columns: tuple[str, ...] = ()
    shown: Callable[[], Iterator[pl.DataFrame]] | None = None
    context: tuple[Column, ...] = ()
    clock: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_context()
        for column in self.user_columns:
            if column.kind == "tokens":
                raise ConfigError(
                    f"user feature {column.name!r} has kind 'tokens', which item towers alone "
                    "read: use 'text'"
                )

    def _check_context(self) -> None:
        names = [*(column.name for column in self.context), *self.clock]
        for name in names:
            if names.count(name) > 1 or name in {column.name for column in self.user_columns}:
                raise ConfigError(f"two features of requests are called {name!r}: rename one")
        if self.clock and self.time_unit == "order":
            raise ConfigError(f"context {self.clock[0]} needs times, but the log has none")

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
        event: Column of the kinds of events.
        weight: Column of the events' weights.
        session: Column of the events' sessions.
        impressions: Column of the items that were shown with each event: lists, or text with `|`.
        impressions_file: File that has this column, where the log has not: a row for each list, or
            several, in parts or one.
        request: Column of both files that says which list belongs to an event.
        context: Context columns of the log.
        clock: Context that times tell, names in `CLOCK`.
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
    event: str | None = None
    weight: str | None = None
    session: str | None = None
    impressions: str | None = None
    impressions_file: Path | str | None = None
    request: str | None = None
    context: tuple[Column, ...] = ()
    clock: tuple[str, ...] = ()
    time_unit: str | None = None
    items: Path | str | None = None
    users: Path | str | None = None
    title: str | None = None
    item_columns: tuple[Column, ...] | None = None
    user_columns: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        given = {
            name: getattr(self, name) for name in ("impressions", "impressions_file", "request")
        }
        if (self.impressions_file or self.request) and None in given.values():
            missing = next(name for name, value in given.items() if value is None)
            raise ConfigError(
                "impressions of a second file need --impressions COLUMN, --impressions-file FILE "
                f"and --request COLUMN (of both files), got no {missing}"
            )

    def fetched(self) -> ReadOptions:
        """The options with local copies of the files that are in an object store."""
        files = {name: getattr(self, name) for name in ("items", "users", "impressions_file")}
        found: dict[str, Any] = {
            name: local_path(at) for name, at in files.items() if at is not None
        }
        return replace(self, **found)

    @property
    def event_columns(self) -> dict[str, str]:
        """The columns that say more of each interaction, from our names to the log's."""
        lists = "impressions" if self.impressions_file is None else "request"
        named = {name: getattr(self, name) for name in ("event", "weight", "session", lists)}
        named |= {f"context.{column.name}": column.name for column in self.context}
        return {ours: theirs for ours, theirs in named.items() if theirs is not None}


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
        reason = reason_of(error)
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
