"""The worker of our own rows: every model × sampler, and the probes behind the floor.

Started by `steps.py`: `python -m measure.ours --data DATASET --threads 1`.
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from crossbatch.data import Dataset, open_dataset
from crossbatch.training.build import draw_batches
from measure.floor import Shape
from measure.machine import PROBES, probe
from measure.shape import MODELS, SAMPLERS, recipe, trainer
from peers.serve import Step, serve

if TYPE_CHECKING:
    from collections.abc import Callable


def prepared(model: str, sampler: str, adam: str, dataset: Dataset) -> Step:
    """One training step with the loading of its batch."""
    shape = Shape()
    chosen = recipe(model, sampler, shape, adam=adam)
    stepping, batches = trainer(chosen, dataset), draw_batches(chosen.train, dataset)
    return lambda: stepping.train_step(next(batches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dataset = open_dataset(options.data)
    rows: dict[str, Callable[[], Step]] = {
        f"{model} {sampler} {adam}": partial(prepared, model, sampler, adam, dataset)
        for model, sampler, adam in product(MODELS, SAMPLERS, ("lazy", "dense", "adagrad"))
    }
    rows |= {name: partial(probe, name) for name in PROBES}
    serve(rows, ("crossbatch", "torch", "numpy"))


if __name__ == "__main__":
    main()
