"""Files that `quality.py` exchanges with a peer: plain NumPy arrays, nothing else.

A peer's script runs in the peer's own environment, which has no crossbatch.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

BATCH_SIZE = 128
EVAL_BATCH = 1024


@dataclass(frozen=True)
class Task:
    """The data and the budget of one training.

    Attributes:
        data: Folder with `train_history`, `train_items`, `valid_history`, `test_history`,
            `sampler_law`, `item_counts`. Histories `[n, L]`, oldest first, right-padded with 0.
        out: Where the vectors go.
        model: Which user tower, for scripts that know several.
        lr: Learning rate.
        steps: Batches of `batch_size` samples.
        checkpoints: How often, evenly, the vectors are written.
        seed: Of the initialisation.
        batch_size: Samples of a batch.
        dim: Width of the vectors, for scripts that let it be chosen.
        optimizer: "adam" or "adagrad", likewise.
    """

    data: Path
    out: Path
    model: str
    lr: float
    steps: int
    checkpoints: int
    seed: int
    batch_size: int = BATCH_SIZE
    dim: int = 64
    optimizer: str = "adam"

    @classmethod
    def from_command_line(cls) -> "Task":
        """Read what `quality.py` passes."""
        parser = argparse.ArgumentParser()
        parser.add_argument("--data", type=Path, required=True)
        parser.add_argument("--out", type=Path, required=True)
        parser.add_argument("--model", required=True)
        parser.add_argument("--lr", type=float, required=True)
        parser.add_argument("--steps", type=int, required=True)
        parser.add_argument("--checkpoints", type=int, required=True)
        parser.add_argument("--seed", type=int, required=True)
        parser.add_argument("--batch-size", type=int, default=BATCH_SIZE)
        parser.add_argument("--dim", type=int, default=64)
        parser.add_argument("--optimizer", default="adam")
        return cls(**vars(parser.parse_args()))

    def load(self, name: str) -> np.ndarray:
        """One of the arrays in `data`, memory-mapped."""
        mapped: np.ndarray = np.load(self.data / f"{name}.npy", mmap_mode="r")
        return mapped

    @property
    def num_items(self) -> int:
        """Ids run from 1 to this."""
        return len(self.load("item_counts")) - 1

    def batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Histories `[B, L]` and positives `[B]`, int64, in the order crossbatch sees them."""
        history, items = self.load("train_history"), self.load("train_items")
        for start in range(0, self.steps * self.batch_size, self.batch_size):
            rows = slice(start, start + self.batch_size)
            yield history[rows].astype(np.int64), items[rows].astype(np.int64)

    def eval_histories(self, split: str) -> Iterator[np.ndarray]:
        """Histories `[n, L]`, int64, of "valid" or "test", some users at a time."""
        history = self.load(f"{split}_history")
        for start in range(0, len(history), EVAL_BATCH):
            yield history[start : start + EVAL_BATCH].astype(np.int64)

    def train(
        self,
        step: Callable[[np.ndarray, np.ndarray], object],
        users: Callable[[np.ndarray], np.ndarray],
        items: Callable[[], np.ndarray],
        *,
        packages: tuple[str, ...],
        options: Mapping[str, object],
    ) -> None:
        """Train for the budget, writing the vectors of both towers at every checkpoint.

        Args:
            step: One optimiser step on histories `[B, L]` and positives `[B]`.
            users: Histories `[n, L]` → `[n, d]`, in inference mode.
            items: → `[num_items + 1, d]`; row 0 is ignored.
            packages: Whose versions to record.
            options: The model's settings, for the record.
        """
        self.out.mkdir(parents=True, exist_ok=True)
        every = self.steps // self.checkpoints
        seconds, cpu = 0.0, 0.0
        for number, (history, positives) in enumerate(self.batches(), start=1):
            wall, used = time.perf_counter(), time.process_time()
            step(history, positives)
            seconds += time.perf_counter() - wall
            cpu += time.process_time() - used
            if number % every == 0:
                valid, test = (
                    np.concatenate([users(h) for h in self.eval_histories(split)])
                    for split in ("valid", "test")
                )
                path = self.out / f"step-{number}.npz"
                np.savez(path, items=items(), valid=valid, test=test)
                print(f"step {number} of {self.steps}", flush=True)
        record = {
            "versions": {name: version(name) for name in packages},
            "options": options,
            "seconds": seconds,
            "cpu_seconds": cpu,
        }
        (self.out / "done.json").write_text(json.dumps(record, indent=1))
