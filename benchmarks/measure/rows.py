"""Which rows an interleaved run has: ours, the probes behind the floor, and the peers'."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from measure.machine import PROBES
from measure.shape import MIN_HISTORY, MODELS, SAMPLERS
from measure.workers import Row, Worker, peer_python

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

    from crossbatch.data import Dataset

# Module of peers/ → its environment; None is our own, which has torch.
PEERS = {
    "step_plain_torch": None,
    "step_tfrs": "tfrs",
    "step_comirec": "tfrs",
    "step_rechub": "torch",
    "step_metric_learning": "torch",
    "step_recbole": "recbole",
}
EXPORTED = 512  # batches that the peers step on


@dataclass(frozen=True, slots=True)
class Run:
    """One interleaved run.

    Attributes:
        dataset: What is trained on.
        out: Folder of logs and results.
        venvs: Folder of the peers' environments.
        only: Rows whose label this expression finds; probes are always there.
    """

    dataset: Dataset
    out: Path
    venvs: Path
    only: re.Pattern[str]

    def our_rows(self, threads: int) -> list[Row]:
        """Every model × sampler; YouTube DNN and in-batch with dense Adam and more threads too."""
        wanted: dict[int, dict[str, str]] = {1: {name: name for name in PROBES}}
        for model, sampler in product(MODELS, SAMPLERS):
            label = f"{model} {sampler}"
            wanted[1][label] = f"{label} lazy"
            if label == "youtube_dnn in_batch":
                wanted[1][f"{label}, Adagrad"] = f"{label} adagrad"
            if model == "youtube_dnn" or sampler == "in_batch":
                wanted[1][f"{label}, dense Adam"] = f"{label} dense"
                if threads > 1:
                    more = wanted.setdefault(threads, {})
                    more[f"{label}, {threads} threads"] = f"{label} lazy"
        return [row for count, labels in wanted.items() for row in self._ours(count, labels)]

    def peer_rows(self) -> Iterator[Row]:
        """All rows of the peers."""
        samples = self._export()
        for module, environment in PEERS.items():
            python = Path(sys.executable)
            if environment is not None:
                python = peer_python(environment, self.venvs)
            worker = Worker(
                python,
                f"peers.{module}",
                ["--samples", str(samples)],
                threads=1,
                log=self.out / f"{module}.log",
            )
            rows = [Row(name, worker, name) for name in worker.rows if self.only.search(name)]
            if not rows:
                worker.close()
            yield from rows

    def _ours(self, threads: int, labels: dict[str, str]) -> list[Row]:
        found = {k: v for k, v in labels.items() if k in PROBES or self.only.search(k)}
        if not found:
            return []
        words = ["--data", str(self.dataset.path.resolve()), "--threads", str(threads)]
        log = self.out / f"ours-{threads}.log"
        worker = Worker(Path(sys.executable), "measure.ours", words, threads=threads, log=log)
        return [Row(label, worker, name) for label, name in found.items()]

    def _export(self) -> Path:
        """Write the samples that the peers read."""
        folder = self.out.resolve() / "samples"
        folder.mkdir(exist_ok=True)
        taken = list(islice(self.dataset.batches(128, seed=0, min_history=MIN_HISTORY), EXPORTED))
        content = self.dataset.item_features["category"].values
        np.save(folder / "history.npy", torch.cat([b.history for b in taken]).numpy())
        np.save(folder / "items.npy", torch.cat([b.item_ids for b in taken]).numpy())
        np.save(folder / "categories.npy", np.asarray(content, dtype=np.int64))
        return folder
