"""Errors of parsers as one sentence that names the file they could not read."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from crossbatch.errors import ConfigError, DataError, out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data.readers.source import Source, Table, Tally

PARSER_ERRORS = (Exception, pl.exceptions.PanicException)  # a panic of polars is no `Exception`
NOT_OF_THE_FILE = (ConfigError, DataError, OSError, MemoryError)


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

    def table(read: Table | None) -> Table | None:
        if read is None:
            return None

        def checked(keys: pl.Series, tally: Tally) -> pl.DataFrame:
            with reader_errors(source.name):
                return read(keys, tally)

        return checked

    return replace(
        source,
        batches=batches,
        item_table=table(source.item_table),
        user_table=table(source.user_table),
    )
