"""Whatever a foreign file provokes in a parser is the file's fault, and told in one sentence."""

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

# A panic of the engine is no `Exception`; what the machine cannot do is no fault of the file.
PROVOKED = (Exception, pl.exceptions.PanicException)
NOT_ITS_FAULT = (ConfigError, DataError, OSError, MemoryError)


@contextmanager
def blamed(name: str) -> Iterator[None]:
    """Turn what happens inside into a `DataError` that names the file, unless it already is one."""
    try:
        yield
    except NOT_ITS_FAULT as error:
        if getattr(error, "errno", None) != errno.EINVAL:
            raise
        raise DataError(f"{name} points outside of itself: it is damaged") from error
    except PROVOKED as error:
        if out_of_memory(error):
            raise MemoryError(str(error)) from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{name} cannot be read ({reason}): it is damaged, or not what its name says"
        ) from error


def guarded(source: Source) -> Source:
    """A source whose log and tables raise nothing but clear errors."""
    name = ", ".join(path.name for path in source.files) or source.format

    def batches(tally: Tally) -> Iterator[pl.DataFrame]:
        frames = source.batches(tally)
        while True:
            with blamed(name):  # around the reader alone, not around whoever takes the frames
                frame = next(frames, None)
            if frame is None:
                return
            yield frame

    def table(read: Table | None) -> Table | None:
        if read is None:
            return None

        def checked(keys: pl.Series, tally: Tally) -> pl.DataFrame:
            with blamed(name):
                return read(keys, tally)

        return checked

    return replace(
        source,
        batches=batches,
        item_table=table(source.item_table),
        user_table=table(source.user_table),
    )
