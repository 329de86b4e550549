"""Add further days to a dataset: old users and items keep their ids, the old log is not read again.

from crossbatch.data import append, open_source
append(open_source("2024-06-01.parquet"), "shop", "shop", overwrite=True)

The result has the users, items and interactions that `prepare` of the whole log would have; only
their numbers differ: those of the dataset stay, new ones follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crossbatch.data.dataset.arrays import ArrayReader
from crossbatch.data.dataset.manifest import write_manifest
from crossbatch.data.dataset.memory_mapped import Dataset, open_dataset
from crossbatch.data.prepare.local_engine import (
    STAGING,
    SortedLog,
    described_columns,
    event_columns,
    write_sorted,
)
from crossbatch.data.prepare.numbering import keep_frequent, number_further_keys
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.pipeline import checksums, reading, write_parts
from crossbatch.data.prepare.rest import COLUMNS, FOLDER, kept_columns, read_described, read_rest
from crossbatch.data.prepare.sequences import Written
from crossbatch.data.prepare.staged_log import StagedLog, read_log
from crossbatch.data.readers.source import Source, Tally
from crossbatch.errors import ConfigError, DataError
from crossbatch.files import atomic_folder, remove_leftovers
from crossbatch.progress import Progress, silent

# Options that may differ from those that the dataset was prepared with.
CHANGEABLE = frozenset({"split", "valid_share", "test_share", "test_day", "max_bad_lines"})


def append(
    source: Source,
    dataset: Path | str,
    out: Path | str,
    options: Mapping[str, Any] | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a dataset that also has the interactions of `source`, and return its manifest.

    Args:
        source: The raw log of further days, as `open_source` gives it. Its content tables add new
            items and users, and replace what the dataset has of those that they contain.
        dataset: A dataset folder that was prepared with `growing`, or without minimum counts.
        out: The folder to create; with `overwrite` it may be `dataset` itself.
        options: Options of `PrepareOptions` that are given; those of the filters and the order are
            the dataset's. The day of test is the last one of the log unless given.
        overwrite: Replace an existing dataset.
        progress: Called with (stage, done, total).

    Raises:
        ConfigError: If an option differs from the dataset's.
        DataError: If the source cannot be used or was added before; nothing is written then.
    """
    base = open_dataset(dataset)
    chosen = merged_options(base, options or {})
    files = checksums(source.files)
    known = _files_so_far(base.manifest)
    found = zip(source.files, files.values(), strict=True)
    repeated = [path for path, checksum in found if checksum in known]
    if again := [path for path in repeated if path not in source.content_files]:
        in_place = Path(out) == Path(dataset) or Path(out).resolve() == base.path.resolve()
        if len(repeated) == len(files) and in_place:
            remove_leftovers(base.path.resolve())  # the same command again, after a kill perhaps
            return base.manifest
        raise DataError(f"{again[0].name} is in {base.path} already: add each file once")
    check_columns(base, source, chosen)
    base.verify()
    tally, content = Tally(chosen.max_bad_lines), Tally(chosen.max_bad_lines)
    with atomic_folder(Path(out), overwrite=overwrite) as folder:
        added = _merge_log(base, source, folder, chosen, tally, progress)
        parts = write_parts(folder, added, chosen, source, content, progress, base)
        progress("checksums", 0, None)
        before = base.manifest
        entry = {
            "format": source.format,
            "files": files,
            "lines": tally.lines,
            "interactions": int(added.offsets[-1]) - len(base.items),
            "new_users": len(added.user_keys) - base.num_users,
            "new_items": len(added.item_keys) - base.num_items,
        }
        manifest = {
            "source": before["source"],
            "appended": [*before.get("appended", []), entry],
            # Items of each dataset before, by its checksum: those of a run that was trained on it.
            "grown_from": before.get("grown_from", {}) | {before["checksum"]: base.num_items},
            "reading": reading(tally, content, before["reading"]),
        }
        return write_manifest(folder, manifest | parts)


def merged_options(base: Dataset, given: Mapping[str, Any]) -> PrepareOptions:
    """The options of a dataset with those given, if they may change and it can grow."""
    if base.shards is not None:
        raise DataError(
            f"{base.path} is in shards, so days cannot be added: prepare it with --growing and "
            "without --shards"
        )
    stored = {field.name for field in fields(PrepareOptions)} & set(base.manifest["options"])
    options = {name: base.manifest["options"][name] for name in sorted(stored)}
    growing = bool(options.get("growing"))
    for name, value in given.items():
        if value is None or name == "growing":
            continue
        if name not in CHANGEABLE and value != options.get(name):
            raise ConfigError(
                f"{name} is {value!r}, but {base.path} was prepared with {options.get(name)!r}: "
                "leave it out, or prepare the whole log again"
            )
        options[name] = value
    options |= {"growing": False, "test_day": given.get("test_day")}
    chosen = PrepareOptions(**options)
    if chosen.split == "user" or chosen.cold_items:
        what = "withheld items" if chosen.cold_items else "a split by users"
        raise DataError(
            f"{base.path} was prepared with {what}, so days cannot be added: prepare it with "
            "--growing --split day"
        )
    accounting = base.manifest["accounting"]
    left_out = accounting["dropped_by_item"] + accounting["dropped_by_user"]
    if left_out and not (growing and (base.path / FOLDER).is_dir()):
        raise DataError(
            f"{base.path} does not have the {left_out:,} interactions that its minimum counts left "
            "out, which further days may bring back: prepare it with --growing"
        )
    return PrepareOptions(**options | {"growing": True})


def check_columns(base: Dataset, source: Source, options: PrepareOptions) -> None:
    """Raise an error unless a source says the same of its events as a dataset's sources did."""
    extra = (base.weight_offsets, base.session_places, base.shown)
    there = bool(base.context_features) or any(each is not None for each in extra)
    if there and not (base.path / COLUMNS).is_file():
        raise DataError(
            f"{base.path} does not keep what further days need of its weights, context, sessions "
            "or impressions: prepare it with --growing"
        )
    had, given = read_described(base.path), described_columns(source, options)
    for name in sorted({*had, *given}):
        if had.get(name) != given.get(name):
            raise ConfigError(
                f"{base.path} was prepared with {name} {_said(had, name)}, got "
                f"{_said(given, name)}: name the same columns of events"
            )


def _said(columns: dict[str, Any], name: str) -> str:
    value = columns.get(name)
    return "none" if value is None else "from a column" if value is True else repr(value)


def _merge_log(
    base: Dataset,
    source: Source,
    folder: Path,
    options: PrepareOptions,
    tally: Tally,
    progress: Progress,
) -> SortedLog:
    """Write the sequences of a dataset and a source, and what the minimum counts left out."""
    staging = folder / STAGING
    staging.mkdir()
    columns = event_columns(source, options, staging)
    for column in columns:
        column.resume(base.path)
    staged = [column for column in columns if column.dtype is not None]
    rest = read_rest(base.path, staged) if (base.path / FOLDER).is_dir() else None
    kept = kept_columns(base.path, staged, len(base.items))
    log = StagedLog(staging, columns)
    # Codes follow first appearance: users get their ids as codes, items theirs less one.
    log.user_codes.encode(pl.Series(base.user_keys(range(base.num_users)), dtype=pl.String))
    log.item_codes.encode(pl.Series(base.item_keys(range(1, base.num_items + 1)), dtype=pl.String))
    if rest is not None:
        log.append(rest.users, rest.items, rest.times, *rest.columns)
    if read_log(source, log, tally, options, progress) is not None:
        raise DataError(f"{source.name} brings a split of its users, so it cannot be added")
    progress("filtering", 0, None)
    frequent = keep_frequent(
        log,
        options.min_item_count,
        options.min_user_count,
        core=options.core,
        known_users=base.num_users,
        known_items=base.num_items,
    )
    numbering = number_further_keys(frequent, np.diff(base.offsets), base.num_items)
    items, times = (ArrayReader(base.path / f"{name}.npy") for name in ("items", "times"))
    written = Written(np.asarray(base.offsets), items, times, kept)
    return write_sorted(source, folder, options, log, frequent, numbering, progress, written)


def _files_so_far(manifest: dict[str, Any]) -> set[str]:
    """Checksums of all files that a dataset was made of."""
    parts = [manifest["source"], *manifest.get("appended", [])]
    return {checksum for part in parts for checksum in part["files"].values()}
