"""Batches per second of `Dataset.batches` against a per-sample `DataLoader` on the same sequences.

    python benchmarks/data_batches.py                    # the full Amazon-Books shape
    python benchmarks/data_batches.py --quick            # a smoke run: numbers mean nothing

Both give the same tensors: B distinct users, a uniform target, the history padded to L.  They run
in turn in one process, so that a busy machine disturbs both alike; the ratio is that of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import Dataset as TorchDataset

from measure.shape import FULL, MIN_HISTORY, TINY, generated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data import Dataset

OUT = Path(__file__).parent / "out"
LENGTH = 20


class Samples(TorchDataset[tuple[int, Tensor, int]]):
    """The usual data set: one user per call, sequences as arrays in memory."""

    def __init__(self, dataset: Dataset) -> None:
        samples = dataset.samples(MIN_HISTORY)
        items = np.array(dataset.items).astype(np.int64)
        self.users = samples.users
        self.sequences = [items[a:b] for a, b in zip(samples.starts, samples.ends, strict=True)]
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, row: int) -> tuple[int, Tensor, int]:
        items = self.sequences[row]
        k = int(self.rng.integers(MIN_HISTORY, len(items)))
        shown = items[max(0, k - LENGTH) : k]
        history = torch.zeros(LENGTH, dtype=torch.int64)
        history[: len(shown)] = torch.from_numpy(shown)
        return int(self.users[row]), history, int(items[k])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="dataset folder; generated where absent")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.repeats = 1
    data = arguments.data or OUT / ("data-tiny" if arguments.quick else "data-full")
    dataset = generated(data, TINY if arguments.quick else FULL)
    samples = Samples(dataset)
    print("| B | crossbatch, batches/s | DataLoader, batches/s | ratio |\n|---|---|---|---|")
    for size in arguments.batch_size:
        ours, theirs = dataset.batches(size, seed=0, min_history=MIN_HISTORY), loader(samples, size)
        rates = [
            (rate(ours, 1024 * 128 // size), rate(theirs, 32 * 128 // size))
            for _ in range(arguments.repeats)
        ]
        fast, slow = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(a / b for a, b in rates)
        print(f"| {size} | {fast:,.0f} | {slow:,.0f} | {ratio:.0f}× |")


def loader(samples: Samples, size: int) -> Iterator[object]:
    while True:
        sampler = RandomSampler(samples, num_samples=size * 10_000, replacement=True)
        yield from DataLoader(samples, batch_size=size, sampler=sampler)


def rate(batches: Iterator[object], count: int) -> float:
    start = time.perf_counter()
    for _ in islice(batches, count):
        pass
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
