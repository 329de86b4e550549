"""Batches of tensors for training and evaluation, assembled by array operations only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from crossbatch.data.dataset.arrays import offsets_of, range_positions

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from crossbatch.data.dataset.samples import Samples

BLOCK_SAMPLES = 8_192  # samples that are gathered at once
CACHED_ROWS = 1_024  # histories that are copied at once, few enough for the processor's cache
BLOCK_BATCHES = 64  # batches of a block at most, so that the first one comes soon


@dataclass(frozen=True, slots=True)
class Batch:
    """Training samples: users, their histories, and the item that came next.

    Attributes:
        user_ids: Shape `[B]`, int64.
        history: Oldest first, padded with 0 on the right.  Shape `[B, L]`, int64.
        item_ids: The positives.  Shape `[B]`, int64.
        later: The items after the positives, of all rows end to end, and the batch offsets; only
            if requested.  Shapes `[n]` and `[B + 1]`, int64.
        event_ids: The positives' rows of the context features, of a dataset that has any.  Shape
            `[B]`, int64.
        shown: The items that were shown with the positives, and the batch offsets, of a dataset
            with impressions.  Shapes `[n]` and `[B + 1]`, int64.
    """

    user_ids: Tensor
    history: Tensor
    item_ids: Tensor
    later: tuple[Tensor, Tensor] | None = None
    event_ids: Tensor | None = None
    shown: tuple[Tensor, Tensor] | None = None

    def to(self, device: torch.device) -> Batch:
        """The same samples on a device."""

        def moved(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(map(moved, part))
            return None if part is None else part.to(device, non_blocking=True)

        return Batch(*(moved(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class EvalBatch:
    """Evaluation samples with all their targets.

    Attributes:
        user_ids: Shape `[B]`, int64.
        history: Oldest first, padded with 0 on the right.  Shape `[B, L]`, int64.
        target_ids: All targets end to end, chronological, repeats kept.  Shape `[T]`, int64.
        target_offsets: Those of row b are `target_offsets[b]:target_offsets[b + 1]`.
            Shape `[B + 1]`, int64.
        seen: Everything before the targets, of all rows end to end, and the batch offsets; the
            history is its newest part.  Shapes `[n]` and `[B + 1]`, int64.
        event_ids: The first targets' rows of the context features, of a dataset that has any.
            Shape `[B]`, int64.
    """

    user_ids: Tensor
    history: Tensor
    target_ids: Tensor
    target_offsets: Tensor
    seen: tuple[Tensor, Tensor] | None = None
    event_ids: Tensor | None = None

    @property
    def targets(self) -> list[Tensor]:
        """The targets of each row."""
        bounds = self.target_offsets.tolist()
        return [self.target_ids[a:b] for a, b in pairwise(bounds)]


def training_batches(
    items: np.ndarray,
    samples: Samples,
    batch_size: int,
    *,
    seed: int,
    history_length: int,
    start: int,
    later: bool,
    first_event: int | None = None,
    places: np.ndarray | None = None,
    shown: tuple[np.ndarray, np.ndarray] | None = None,
) -> Iterator[Batch]:
    """Yield batches of samples of `items` without end; batch i depends on the seed and i alone.

    The generator is counter-based, so that a block needs none of the blocks before it. With
    `first_event`, the id of the first interaction, batches have the ids of their events.
    """
    import torch

    per_block = min(max(1, BLOCK_SAMPLES // batch_size), BLOCK_BATCHES)
    block, skip = divmod(start, per_block)
    while True:
        rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, block, 0]))
        rows, positions = samples.draw(rng, (per_block, batch_size))
        starts = np.maximum(
            _starts(samples.starts[rows], positions, places), positions - history_length
        )
        users = torch.from_numpy(samples.users[rows])
        history = torch.from_numpy(_windows(items, starts, positions, history_length))
        targets = torch.from_numpy(items[positions].astype(np.int64))
        # One split of the block: slicing every tensor of every batch takes three times as long.
        parts = (tensor.split(batch_size) for tensor in (users, history, targets))
        after: Iterator[tuple[Tensor, Tensor] | None] = repeat(None)
        if later:
            after = _by_batch(items, positions + 1, samples.ends[rows], per_block)
        event_ids: Iterator[Tensor | None] = repeat(None)
        if first_event is not None:
            event_ids = iter(torch.from_numpy(positions + first_event).split(batch_size))
        lists: Iterator[tuple[Tensor, Tensor] | None] = repeat(None)
        if shown is not None:
            bounds = shown[1]
            lists = _by_batch(shown[0], bounds[positions], bounds[positions + 1], per_block)
        yield from islice(map(Batch, *parts, after, event_ids, lists), skip, None)
        block, skip = block + 1, 0


def _by_batch(
    items: np.ndarray, starts: np.ndarray, ends: np.ndarray, num_batches: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield `items[start:end]` of the samples of each batch: a block's may not fit in memory."""
    for start, end in zip(np.split(starts, num_batches), np.split(ends, num_batches), strict=True):
        yield _ranges(items, start, end)


def eval_batches(
    items: np.ndarray,
    users: np.ndarray,
    starts: np.ndarray,
    cuts: np.ndarray,
    ends: np.ndarray,
    *,
    batch_size: int,
    history_length: int,
    weight_offsets: np.ndarray | None = None,
    events: bool = False,
    places: np.ndarray | None = None,
) -> Iterator[EvalBatch]:
    """Yield evaluation samples in stored order; the last batch may be short.

    Of `items`, all sequences end to end, `start:cut` is a user's history and `cut:end` the targets;
    with `weight_offsets` (see `Samples`), those of a weight above 0.
    """
    import torch

    for first in range(0, len(users), batch_size):
        rows = slice(first, first + batch_size)
        cut, end = cuts[rows], ends[rows]
        targets, target_offsets = _targets(cut, end, weight_offsets)
        begin = np.maximum(_starts(starts[rows], cut, places), cut - history_length)
        yield EvalBatch(
            user_ids=torch.from_numpy(users[rows].astype(np.int64)),
            history=torch.from_numpy(_windows(items, begin, cut, history_length)),
            target_ids=torch.from_numpy(items[targets].astype(np.int64)),
            target_offsets=torch.from_numpy(target_offsets),
            seen=_ranges(items, starts[rows], cut),
            event_ids=torch.from_numpy(targets[target_offsets[:-1]]) if events else None,
        )


def _starts(starts: np.ndarray, positions: np.ndarray, places: np.ndarray | None) -> np.ndarray:
    """Return where the histories of targets start: those of the user, or of their sessions.

    `places` `[n]` are how many events of its session came before each one; a target that begins a
    session has the history of its user.
    """
    if places is None:
        return starts
    earlier = places[positions]
    return np.where(earlier > 0, np.maximum(starts, positions - earlier), starts)


def _targets(
    cuts: np.ndarray, ends: np.ndarray, weight_offsets: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the positions of all targets end to end, and where those of each row begin."""
    positions, offsets = range_positions(cuts, ends)
    if weight_offsets is None:
        return positions, offsets
    kept = weight_offsets[positions + 1] > weight_offsets[positions]
    return positions[kept], offsets_of(kept)[offsets]


def _windows(
    items: np.ndarray, starts: np.ndarray, ends: np.ndarray, history_length: int
) -> np.ndarray:
    """Return `items[start:end]` of each row, padded with 0 on the right.  `[B, L]`, int64."""
    if len(items) < history_length:
        items = np.pad(items, (0, history_length - len(items)))
    lengths, last = ends - starts, len(items) - history_length
    windows = sliding_window_view(items, history_length)  # [last + 1, L]; a row is copied at once
    inside = np.tri(history_length + 1, history_length, -1, dtype=items.dtype)  # row n: n ones
    padded = np.empty((len(starts), history_length), dtype=np.int64)
    for first in range(0, len(starts), CACHED_ROWS):
        rows = slice(first, first + CACHED_ROWS)
        held = windows[np.minimum(starts[rows], last)]
        np.multiply(held, inside.take(lengths[rows], axis=0), out=padded[rows])
    for row in np.flatnonzero(starts > last).tolist():  # at the end of the log no window is whole
        padded[row] = 0
        padded[row, : lengths[row]] = items[starts[row] : ends[row]]
    return padded


def _ranges(items: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return `items[start:end]` of all rows end to end, and where each begins.  int64."""
    import torch

    positions, offsets = range_positions(starts, ends)
    return torch.from_numpy(items[positions].astype(np.int64)), torch.from_numpy(offsets)
