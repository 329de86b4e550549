"""Readers of raw logs.  A new format is one file, its test, and one line in `READERS`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from crossbatch.data.readers import amazon, comirec, movielens, recbole, table
from crossbatch.data.readers.source import ReadOptions, Source, reader_errors, with_clear_errors
from crossbatch.data.readers.table_files import is_pattern
from crossbatch.errors import ConfigError, DataError, check_choice
from crossbatch.remote import local_path

READERS: dict[str, Any] = {
    "table": table,
    "amazon": amazon,
    "movielens": movielens,
    "comirec": comirec,
    "recbole": recbole,
}
GENERAL = "table"  # also fits files of the special formats, so it is tried last

__all__ = ["READERS", "ReadOptions", "detect_format", "open_source"]


def open_source(
    path: Path | str, format_name: str | None = None, options: ReadOptions | None = None
) -> Source:
    """Return a raw log as a source.

    Args:
        path: A file, a folder, a zip, or a pattern of files of a table; also as a URL in an object
            store.
        format_name: A name in `READERS`; by default it is detected.
        options: What the files do not say themselves.

    Raises:
        ConfigError: If the format is unknown or cannot be detected.
        DataError: If the files are missing or not of that format.
    """
    options = (options or ReadOptions()).fetched()
    path = local_path(path)
    if not path.exists() and not is_pattern(path):
        raise DataError(f"{path} does not exist")
    if not path.is_file() and not path.is_dir() and path.exists():
        raise DataError(f"{path} is a pipe or a device, which can be read once: save it as a file")
    # only the table format takes column names or a pattern
    named = GENERAL if (options.user and options.item) or is_pattern(path) else None
    name = format_name or named or detect_format(path)
    check_choice("format", name, READERS)
    if options.event_columns and name != GENERAL:
        columns = options.event_columns.items()
        given = ", ".join(f"--{ours.partition('.')[0]} {theirs}" for ours, theirs in columns)
        raise ConfigError(f"a {name} log has no columns of events, got {given}: leave them out")
    with reader_errors(path.name):
        return with_clear_errors(READERS[name].open_source(path, options))


def detect_format(path: Path) -> str:
    """Return the one format that certainly fits."""
    special = [
        name for name, reader in READERS.items() if name != GENERAL and reader.recognises(path)
    ]
    fitting = special or ([GENERAL] if READERS[GENERAL].recognises(path) else [])
    if len(fitting) != 1:
        fits = f"fits {' and '.join(fitting)}" if fitting else "fits no format for certain"
        raise ConfigError(f"{path} {fits}: say which with --format {{{','.join(READERS)}}}")
    return fitting[0]
