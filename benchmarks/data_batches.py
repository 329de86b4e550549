"""Batches per second of `Dataset.batches` against a per-sample `DataLoader` on the same sequences.

    python benchmarks/data_batches.py                    # the full Amazon-Books shape
    python benchmarks/data_batches.py --shards 16        # against the same log in shards
    python benchmarks/data_batches.py --quick            # a smoke run: numbers mean nothing

Both give the same tensors: B distinct users, a uniform target, the history padded to L.  They run
in turn in one process, so that a busy machine disturbs both alike; the ratio is that of medians.
With `--shards`, a dataset without and one with shards are read in turn, each by a process of its
own: rows per second, and the peak of its resident memory beyond that of one that reads no batch.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler
from torch.utils.data import Dataset as TorchDataset

from crossbatch.data import open_dataset
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
    parser.add_argument("--shards", type=int, help="compare with a dataset in so many shards")
    parser.add_argument("--draw", type=int, help="only draw so many batches of --data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.quick:
        arguments.repeats = 1
    if arguments.draw is not None:
        draw(arguments.data, arguments.batch_size[0], arguments.draw)
        return
    if arguments.shards is not None:
        count = 300 if arguments.quick else 40_000
        size = TINY if arguments.quick else FULL
        compare_shards(size, arguments.shards, arguments.batch_size[0], count, arguments.repeats)
        return
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


def compare_shards(size: dict[str, int], number: int, B: int, count: int, repeats: int) -> None:
    """Print rows per second and memory of reading the same log without and with shards."""
    with tempfile.TemporaryDirectory(prefix="crossbatch-bench-") as folder:
        place = Path(folder)
        commands = [
            ["synth", "--raw", place / "raw"],
            *(
                ["prepare", place / "raw", "--out", place / name, *more]
                for name, more in (("whole", []), ("parts", ["--shards", number]))
            ),
        ]
        commands[0] += [word for key, value in size.items() for word in (f"--{key}", value)]
        for command in commands:
            words = [sys.executable, "-m", "crossbatch", *command, "--quiet"]
            subprocess.run([str(word) for word in words], check=True)
        found: dict[str, list[tuple[float, float]]] = {"whole": [], "parts": []}
        for _ in range(repeats):
            for name, costs in found.items():
                opened = child(place / name, B, 0)
                seconds, peak = child(place / name, B, count)
                costs.append((B * count / seconds, peak - opened[1]))
        print("| dataset | rows/s | MB beyond an opened dataset |\n|---|---|---|")
        for name, costs in found.items():
            rate, peak = (statistics.median(column) for column in zip(*costs, strict=True))
            label = "one folder" if name == "whole" else f"{number} shards"
            print(f"| {label} | {rate:,.0f} | {peak:,.0f} |")
        pairs = zip(found["parts"], found["whole"], strict=True)
        ratios = sorted(parts[0] / whole[0] for parts, whole in pairs)
        each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"rows/s of shards over one folder: {statistics.median(ratios):.2f} ({each})")


def child(data: Path, B: int, count: int) -> tuple[float, float]:
    """Draw batches in a process of its own: seconds, and the peak of its memory in MB."""
    words = (sys.executable, __file__, "--data", data, "--batch-size", B, "--draw", count)
    printed = subprocess.run([str(word) for word in words], check=True, capture_output=True)
    seconds, peak = json.loads(printed.stdout)
    return seconds, peak


def draw(data: Path, B: int, count: int) -> None:
    """Draw batches, and print the seconds and the peak of the process's memory in MB."""
    batches = open_dataset(data).batches(B, seed=0, sample_by="interaction")
    start = time.perf_counter()
    for _ in islice(batches, count):
        pass
    seconds = time.perf_counter() - start
    print(json.dumps([seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


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
