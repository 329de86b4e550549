"""Prepare a dataset: read, filter, number, sort, split, encode; a folder that is whole or absent.

from crossbatch.data import PrepareOptions, open_source, prepare
prepare(open_source("ml-1m.zip"), "ml-1m", PrepareOptions(split="leave_last_out"))
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from crossbatch.data.features import write_features
from crossbatch.data.filtering import Frequent, keep_frequent
from crossbatch.data.folder import atomic_folder, write_manifest
from crossbatch.data.ingest import Ingested, ingest
from crossbatch.data.law import ItemLaw, item_law
from crossbatch.data.numbering import Numbered, number
from crossbatch.data.options import PrepareOptions
from crossbatch.data.progress import Progress, silent
from crossbatch.data.sequences import write_sequences
from crossbatch.data.source import Source, Tally
from crossbatch.data.splits import SPLITS, Sequences, Split, write_split
from crossbatch.data.strings import byte_order, write_strings
from crossbatch.documents import file_checksum
from crossbatch.errors import DataError


def prepare(
    source: Source,
    out: Path | str,
    options: PrepareOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Turn a raw log into a dataset folder and return its manifest.

    Args:
        source: A raw log, as `open_source` gives it.
        out: The folder to create.
        options: How to filter, order and split; by default the source's own defaults.
        overwrite: Replace an existing dataset.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the source cannot be used; nothing is left behind then.
    """
    options = options or PrepareOptions.merged(source.defaults, {})
    tally = Tally(options.max_bad_lines)
    with atomic_folder(Path(out), overwrite=overwrite) as folder:
        staging = folder / "staging"
        staging.mkdir()
        ingested = ingest(source, staging, tally, min_rating=options.min_rating, progress=progress)
        progress("filtering", 0, None)
        least = (options.min_item_count, options.min_user_count)
        frequent = keep_frequent(ingested.log, *least, core=options.core)
        numbered = number(ingested, frequent, options)
        sequences = _write_sequences(ingested, numbered, folder, options, progress)
        shutil.rmtree(staging)
        split, law = _write_law(folder, sequences, numbered, options)
        content = Tally(options.max_bad_lines)
        features = _write_content(folder, source, ingested, numbered, content, progress)
        progress("checksums", 0, None)
        manifest = _manifest(source, options, ingested, frequent, numbered, sequences, split, law)
        manifest |= {"features": features, "reading": _reading(tally, content, ingested)}
        return write_manifest(folder, manifest)


def _write_sequences(
    ingested: Ingested,
    numbered: Numbered,
    folder: Path,
    options: PrepareOptions,
    progress: Progress,
) -> Sequences:
    ranks = np.zeros(len(ingested.log.item_codes), dtype=np.int64)
    if options.ties == "item":
        ranks[byte_order(ingested.log.item_codes.keys)] = np.arange(len(ranks))
    offsets = write_sequences(
        ingested.log,
        numbered.numbering,
        folder,
        ties=options.ties,
        seed=options.seed,
        key_ranks=ranks,
        progress=progress,
    )
    times = np.load(folder / "times.npy", mmap_mode="r")
    return Sequences(offsets, times, numbered.bounds)


def _write_law(
    folder: Path, sequences: Sequences, numbered: Numbered, options: PrepareOptions
) -> tuple[Split, ItemLaw]:
    split = SPLITS[options.split](sequences, (options.valid_share, options.test_share))
    law = item_law(
        np.load(folder / "items.npy", mmap_mode="r"),
        sequences.offsets[split.train_users],
        split.train_ends,
        num_items=len(numbered.item_codes),
        min_history=options.min_history,
    )
    if not law.samples:
        raise DataError(
            f"no training user has more than min_history = {options.min_history} interactions: "
            "lower --min-history or use a longer log"
        )
    write_split(folder, split, law.eligible)
    np.save(folder / "item_counts.npy", law.counts)
    np.save(folder / "sampler_law.npy", law.law)
    return split, law


def _write_content(
    folder: Path,
    source: Source,
    ingested: Ingested,
    numbered: Numbered,
    tally: Tally,
    progress: Progress,
) -> dict[str, Any]:
    """Write keys, titles and features of items (row 0 = padding) and users."""
    progress("content", 0, None)
    item_keys = ingested.log.item_codes.keys.gather(numbered.item_codes)
    user_keys = ingested.log.user_codes.keys.gather(numbered.user_codes)
    padded = pl.concat([pl.Series("key", [None], dtype=pl.String), item_keys])
    write_strings(folder, "item_keys", padded)
    write_strings(folder, "user_keys", user_keys)
    np.save(folder / "item_key_order.npy", byte_order(padded))
    np.save(folder / "user_key_order.npy", byte_order(user_keys))
    summary: dict[str, Any] = {"items": {}, "users": {}}
    if source.item_table is not None:
        table = _aligned(padded, source.item_table(item_keys, tally), "items", tally)
        if source.title is not None:
            write_strings(folder, "item_titles", table[source.title].cast(pl.String))
        summary["items"] = write_features(
            folder / "features/items", table, source.item_columns, padding=1
        )
    if source.user_table is not None:
        table = _aligned(user_keys, source.user_table(user_keys, tally), "users", tally)
        summary["users"] = write_features(folder / "features/users", table, source.user_columns)
    return summary


def _aligned(keys: pl.Series, table: pl.DataFrame, what: str, tally: Tally) -> pl.DataFrame:
    """Return one row of content for each key, null where there is none; the first of duplicates."""
    tally.lines += len(table)
    tally.check()
    table = table.with_columns(pl.col("key").cast(pl.String)).filter(
        pl.col("key").is_in(keys.implode())
    )
    unique = table.unique("key", keep="first", maintain_order=True)
    if len(unique) < len(table):
        tally.notes.append(f"{len(table) - len(unique):,} repeated rows of {what} were ignored")
    missing = keys.null_count() + len(unique)
    if missing < len(keys):
        tally.notes.append(f"{len(keys) - missing:,} {what} have no content")
    frame = pl.DataFrame({"key": keys})
    return frame.join(unique, on="key", how="left", maintain_order="left")


def _manifest(
    source: Source,
    options: PrepareOptions,
    ingested: Ingested,
    frequent: Frequent,
    numbered: Numbered,
    sequences: Sequences,
    split: Split,
    law: ItemLaw,
) -> dict[str, Any]:
    lengths = split.train_ends - sequences.offsets[split.train_users]
    return {
        "source": {
            "format": source.format,
            "files": {path.name: file_checksum(path) for path in source.files},
        },
        "options": asdict(options),
        "counts": {
            "users": len(numbered.user_codes),
            "items": len(numbered.item_codes),
            "interactions": int(sequences.offsets[-1]),
            "train_users": int(law.eligible.sum()),
            "train_users_too_short": int((~law.eligible).sum()),
            "train_interactions": int(lengths.sum()),
            "eligible_samples": law.samples,
            "valid_users": len(split.valid.users),
            "valid_targets": int((split.valid.ends - split.valid.cuts).sum()),
            "test_users": len(split.test.users),
            "test_targets": int((split.test.ends - split.test.cuts).sum()),
        },
        "accounting": {
            "staged": ingested.log.rows,
            "dropped_by_item": frequent.dropped_by_item,
            "dropped_by_user": frequent.dropped_by_user,
            "dropped_cold": numbered.dropped_cold,
            "kept": int(sequences.offsets[-1]),
            "filter_rounds": frequent.rounds,
        },
    }


def _reading(tally: Tally, content: Tally, ingested: Ingested) -> dict[str, Any]:
    return {
        "lines": tally.lines,
        "bad_lines": dict(sorted(tally.bad.items())),
        "below_rating": ingested.below_rating,
        "bad_content_lines": dict(sorted(content.bad.items())),
        "notes": [*tally.notes, *content.notes],
    }
