"""Prepare a dataset: read, filter, number, sort, split, encode; a folder that is whole or absent.

from crossbatch.data import PrepareOptions, open_source, prepare
prepare(open_source("ml-1m.zip"), "ml-1m", PrepareOptions(split="leave_last_out"))
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.data.dataset.arrays import ArrayReader
from crossbatch.data.dataset.manifest import write_manifest
from crossbatch.data.dataset.samples import Samples, item_totals, target_counts
from crossbatch.data.prepare import local_engine, spark_engine
from crossbatch.data.prepare.content import write_content
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.prepare.splits import SPLITS, Sequences
from crossbatch.data.prepare.write_shards import write_shards
from crossbatch.data.readers.source import Source, Tally, reader_errors
from crossbatch.errors import ConfigError, DataError, check_choice
from crossbatch.files import atomic_folder, file_checksum
from crossbatch.progress import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crossbatch.data.dataset.memory_mapped import Dataset
    from crossbatch.data.prepare.local_engine import Engine, SortedLog

ENGINES: dict[str, Engine] = {"polars": local_engine.sort_log, "spark": spark_engine.sort_log}


def prepare(
    source: Source,
    out: Path | str,
    options: PrepareOptions | None = None,
    *,
    engine: str = "polars",
    overwrite: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Turn a raw log into a dataset folder and return its manifest.

    Args:
        source: A raw log, as `open_source` gives it.
        out: The folder to create.
        options: How to filter, order and split; by default the source's own defaults.
        engine: What reads, filters and sorts, a name in `ENGINES`; the dataset is the same.
        overwrite: Replace an existing dataset.
        progress: Called with (stage, done, total).

    Raises:
        DataError: If the source cannot be used; nothing is written then.
    """
    check_choice("engine", engine, ENGINES)
    options = options or PrepareOptions.merged(source.defaults, {})
    if options.growing and engine != "polars":
        raise ConfigError(f"growing needs the engine polars, got {engine!r}: leave one of them out")
    tally, content = Tally(options.max_bad_lines), Tally(options.max_bad_lines)
    with atomic_folder(Path(out), overwrite=overwrite) as folder:
        log = ENGINES[engine](source, folder, options, tally, progress)
        manifest = write_parts(folder, log, options, source, content, progress)
        if options.shards is not None:
            progress("shards", 0, None)
            manifest["shards"] = write_shards(folder, options.shards, len(log.item_keys))
        progress("checksums", 0, None)
        manifest["source"] = {"format": source.format, "files": checksums(source.files)}
        manifest["reading"] = reading(tally, content)
        return write_manifest(folder, manifest)


def write_parts(
    folder: Path,
    log: SortedLog,
    options: PrepareOptions,
    source: Source,
    content: Tally,
    progress: Progress,
    base: Dataset | None = None,
) -> dict[str, Any]:
    """Write the split and the content of a sorted log; return what the manifest says of them."""
    weights = folder / "weight_offsets.npy"
    sequences = Sequences(
        log.offsets,
        ArrayReader(folder / "times.npy"),
        log.bounds,
        ArrayReader(weights) if weights.is_file() else None,
    )
    counts = write_split(folder, sequences, len(log.item_keys), options)
    with reader_errors("the content of items or users"):
        features = write_content(folder, source, log, content, progress, base)
    if log.context:
        features["context"] = dict(log.context)
    sizes = {"users": len(log.user_keys), "items": len(log.item_keys)}
    return {
        "options": described(options),
        "counts": sizes | {"interactions": int(log.offsets[-1])} | counts,
        "accounting": log.accounting,
        "features": features,
    }


def reading(tally: Tally, content: Tally, before: Mapping[str, Any] = {}) -> dict[str, Any]:
    """Return the manifest's account of all lines that were read, those of days before included."""

    def total(key: str, bad: Counter[str]) -> dict[str, int]:
        return dict(sorted((Counter(before.get(key, {})) + bad).items()))

    return {
        "lines": before.get("lines", 0) + tally.lines,
        "bad_lines": total("bad_lines", tally.bad),
        "below_rating": before.get("below_rating", 0) + tally.left_out["below_rating"],
        "other_events": before.get("other_events", 0) + tally.left_out["other_events"],
        "bad_content_lines": total("bad_content_lines", content.bad),
        "notes": [*tally.notes, *content.notes],
    }


def described(options: PrepareOptions) -> dict[str, Any]:
    """Return the options as the manifest has them; what was not used is not among them."""
    chosen = asdict(options)
    for name in ("event_weights", "session_gap", "shards"):
        if chosen[name] is None:
            del chosen[name]
    return chosen


def write_split(
    folder: Path, sequences: Sequences, num_items: int, options: PrepareOptions
) -> dict[str, int]:
    """Write split, item counts and sampling law; return the sizes of the parts."""
    split = SPLITS[options.split](sequences, options)
    items, offsets = ArrayReader(folder / "items.npy"), sequences.offsets
    lengths = split.train_ends - offsets[split.train_users]
    if not (lengths > 1).any():
        raise DataError("no training user has two interactions: use a longer log")
    counts = item_totals(items, offsets[split.train_users], split.train_ends, num_items)
    users, ends = split.train_users[lengths > 1], split.train_ends[lengths > 1]
    starts, sums = offsets[users], sequences.weight_offsets
    samples = Samples(users, starts, starts + 1, ends, weight_offsets=sums).with_targets()
    if not len(samples.users):
        raise DataError("no training user has a target with a weight above 0: check the weights")
    arrays = {"train_users": users, "train_ends": ends, "item_counts": counts}
    arrays["sampler_law"] = samples.law(items, num_items)
    sizes = {
        "train_users": len(users),
        "train_users_too_short": len(lengths) - len(users),
        "train_interactions": int(counts.sum()),
        "eligible_samples": samples.count(),
    }
    for name, part in (("valid", split.valid), ("test", split.test)):
        targets = part.ends - part.cuts
        if sums is not None:
            targets = target_counts(sums, part.cuts, part.ends)
            part = part.where(targets > 0)
        arrays |= {f"{name}_{key}": array for key, array in part._asdict().items()}
        sizes[f"{name}_users"] = len(part.users)
        sizes[f"{name}_targets"] = int(targets.sum())
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return sizes


def checksums(files: Sequence[Path]) -> dict[str, str]:
    """Return the files' checksums by name, with as many folders as make the names differ."""
    names = [path.name for path in files]
    if len(set(names)) < len(names):
        common = os.path.commonpath([path.absolute().parent for path in files])
        names = [path.absolute().relative_to(common).as_posix() for path in files]
    return {name: file_checksum(path) for name, path in zip(names, files, strict=True)}
