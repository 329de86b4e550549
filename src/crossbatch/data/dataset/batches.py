"""Batches of tensors for training and evaluation, assembled by array operations only."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, pairwise, repeat
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from crossbatch.data.dataset.arrays import range_positions

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
    """

    user_ids: Tensor
    history: Tensor
    item_ids: Tensor
    later: tuple[Tensor, Tensor] | None = None

    def to(self, device: torch.device) -> Batch:
        """The same samples on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        later = self.later and (moved(self.later[0]), moved(self.later[1]))
        return Batch(moved(self.user_ids), moved(self.history), moved(self.item_ids), later)


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
    """

    user_ids: Tensor
    history: Tensor
    target_ids: Tensor
    target_offsets: Tensor
    seen: tuple[Tensor, Tensor] | None = None

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
) -> Iterator[Batch]:
    """Yield batches of samples of `items` without end; batch i depends on the seed and i alone.

    The generator is counter-based, so that a block needs none of the blocks before it.
    """
    import torch

    per_block = min(max(1, BLOCK_SAMPLES // batch_size), BLOCK_BATCHES)
    block, skip = divmod(start, per_block)
    while True:
        rng = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, block, 0]))
        rows, positions = samples.draw(rng, (per_block, batch_size))
        starts = np.maximum(samples.starts[rows], positions - history_length)
        users = torch.from_numpy(samples.users[rows])
        history = torch.from_numpy(_windows(items, starts, positions, history_length))
        targets = torch.from_numpy(items[positions].astype(np.int64))
        # One split of the block: slicing every tensor of every batch takes three times as long.
        parts = (tensor.split(batch_size) for tensor in (users, history, targets))
        after = _later(items, positions, samples.ends[rows], per_block) if later else repeat(None)
        yield from islice(map(Batch, *parts, after), skip, None)
        block, skip = block + 1, 0


def _later(
    items: np.ndarray, positions: np.ndarray, ends: np.ndarray, num_batches: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the items after the targets, batch by batch: those of a block may not fit in memory."""
    for target, end in zip(
        *(np.split(each, num_batches) for each in (positions, ends)), strict=True
    ):
        yield _ranges(items, target + 1, end)


def eval_batches(
    items: np.ndarray,
    users: np.ndarray,
    starts: np.ndarray,
    cuts: np.ndarray,
    ends: np.ndarray,
    *,
    batch_size: int,
    history_length: int,
) -> Iterator[EvalBatch]:
    """Yield evaluation samples in stored order; the last batch may be short.

    Of `items`, all sequences end to end, `start:cut` is a user's history and `cut:end` the targets.
    """
    import torch

    for first in range(0, len(users), batch_size):
        rows = slice(first, first + batch_size)
        cut, end = cuts[rows], ends[rows]
        begin = np.maximum(starts[rows], cut - history_length)
        target_ids, target_offsets = _ranges(items, cut, end)
        yield EvalBatch(
            user_ids=torch.from_numpy(users[rows].astype(np.int64)),
            history=torch.from_numpy(_windows(items, begin, cut, history_length)),
            target_ids=target_ids,
            target_offsets=target_offsets,
            seen=_ranges(items, starts[rows], cut),
        )


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
