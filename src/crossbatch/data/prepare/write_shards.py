"""Divide the training sequences of a prepared dataset among shards.

    shards/0000/users.npy, offsets.npy, items.npy, times.npy, …     training parts of some users
    offsets.npy, items.npy, times.npy, …                            of validation and test users

Users were numbered in a random order, so that neighbours are a fair sample of the log: a shard has
the training users from one number to another, as many as the next. What is known of single
interactions is divided with them; everything else is stored once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from crossbatch.data.dataset.arrays import (
    ArrayReader,
    ArrayWriter,
    SumWriter,
    offsets_of,
    range_positions,
    range_runs,
)
from crossbatch.data.dataset.features import read_schema
from crossbatch.data.dataset.samples import Samples
from crossbatch.data.dataset.shards import shard_name
from crossbatch.errors import ConfigError

PIECE_ROWS = 1 << 20  # interactions that are copied at once
CONTEXT = "features/context"


def write_shards(folder: Path, number: int, num_items: int) -> dict[str, Any]:
    """Divide a dataset folder whose split is written; return the manifest's entry of the shards."""
    offsets, users, ends = (
        np.load(folder / f"{name}.npy") for name in ("offsets", "train_users", "train_ends")
    )
    if number > len(users):
        raise ConfigError(
            f"shards must not exceed the {len(users):,} training users, got {number:,}: ask for "
            "fewer"
        )
    starts = offsets[users]
    samples = _samples(folder, users, starts, ends, sample_by="interaction").with_targets()
    law = samples.law(ArrayReader(folder / "items.npy"), num_items)
    np.save(folder / "interaction_law.npy", law)
    # their numbers of users differ by one at most
    bounds = [len(users) * shard // number for shard in range(number + 1)]
    parts = []
    for shard, (first, last) in enumerate(pairwise(bounds)):
        own, place = slice(first, last), folder / shard_name(shard)
        _copy_events(folder, place, starts[own], ends[own])
        np.save(place / "offsets.npy", offsets_of(ends[own] - starts[own]))
        np.save(place / "users.npy", users[own])
        drawn = _samples(folder, users[own], starts[own], ends[own]).with_targets()
        parts.append(
            {
                "users": len(drawn.users),
                "interactions": int((ends[own] - starts[own]).sum()),
                "samples": drawn.count(),
                "weight": int(drawn.totals.sum()),
            }
        )
    times = ArrayReader(folder / "times.npy")
    last_time = max(int(piece.max()) for piece in _pieces(times, starts, ends))
    _keep_evaluated(folder, offsets)
    return {"last_training_time": last_time, "parts": parts}


def _samples(
    folder: Path, users: np.ndarray, starts: np.ndarray, ends: np.ndarray, sample_by: str = "user"
) -> Samples:
    weights = folder / "weight_offsets.npy"
    sums = ArrayReader(weights) if weights.is_file() else None
    return Samples(users, starts, starts + 1, ends, sample_by, sums)


def _keep_evaluated(folder: Path, offsets: np.ndarray) -> None:
    """Leave the sequences of validation and test users; those of others become empty."""
    parts = {name: np.load(folder / f"{name}_users.npy") for name in ("valid", "test")}
    users = np.union1d(parts["valid"], parts["test"])
    lengths = np.zeros(len(offsets) - 1, dtype=np.int64)
    lengths[users] = np.diff(offsets)[users]
    kept = offsets_of(lengths)
    place = folder / "evaluated"
    _copy_events(folder, place, offsets[users], offsets[users + 1])
    for path in [path for path in place.rglob("*") if path.is_file()]:
        path.replace(folder / path.relative_to(place))
    shutil.rmtree(place)
    for name, evaluated in parts.items():
        for end in ("cuts", "ends"):
            path = folder / f"{name}_{end}.npy"
            np.save(path, np.load(path) - offsets[evaluated] + kept[evaluated])
    np.save(folder / "offsets.npy", kept)
    for name in ("train_users", "train_ends"):
        (folder / f"{name}.npy").unlink()


def _copy_events(source: Path, target: Path, starts: np.ndarray, ends: np.ndarray) -> None:
    """Copy the interactions of ascending ranges of all arrays that have a row for each."""
    target.mkdir(parents=True)
    plain, bags = ["items", "times"], []
    if (source / "session_places.npy").is_file():
        plain.append("session_places")
    if (source / "shown_items.npy").is_file():
        bags.append(("shown_offsets", "shown_items"))
    if schema := read_schema(source / CONTEXT):
        (target / CONTEXT).mkdir(parents=True)
        for entry in schema.values():
            stem = f"{CONTEXT}/{entry['stem']}"
            if (source / f"{stem}.offsets.npy").is_file():
                bags.append((f"{stem}.offsets", stem))
            else:
                plain.append(stem)
    for name in plain:
        _copy_rows(source / f"{name}.npy", target / f"{name}.npy", starts, ends)
    for offsets, values in bags:
        bounds = ArrayReader(source / f"{offsets}.npy")
        begin, end = bounds.take(starts), bounds.take(ends)
        _copy_rows(source / f"{values}.npy", target / f"{values}.npy", begin, end)
        _copy_sums(source / f"{offsets}.npy", target / f"{offsets}.npy", starts, ends)
    if (source / "weight_offsets.npy").is_file():
        name = "weight_offsets.npy"
        _copy_sums(source / name, target / name, starts, ends)


def _copy_rows(source: Path, target: Path, starts: np.ndarray, ends: np.ndarray) -> None:
    """Copy the rows of ascending ranges."""
    array, total = ArrayReader(source), int((ends - starts).sum())
    with ArrayWriter(target, array.dtype, total, width=array.width) as copy:
        for piece in _pieces(array, starts, ends):
            copy.append(piece)


def _copy_sums(source: Path, target: Path, starts: np.ndarray, ends: np.ndarray) -> None:
    """Copy what ascending ranges add to running sums `[n + 1]`, as sums from 0 on."""
    array = ArrayReader(source)
    with SumWriter(target, int((ends - starts).sum())) as copy:
        for run, first, last in range_runs(starts, ends, PIECE_ROWS):
            inside, _ = range_positions(starts[run] - first, ends[run] - first)
            copy.append(np.diff(array[first : last + 1])[inside])


def _pieces(array: ArrayReader, starts: np.ndarray, ends: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of ascending ranges, those of about `PIECE_ROWS` rows at a time."""
    for run, first, last in range_runs(starts, ends, PIECE_ROWS):
        yield array[first:last][range_positions(starts[run] - first, ends[run] - first)[0]]
