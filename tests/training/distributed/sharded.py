"""A run whose id table is spread over ranks: `python sharded.py DATASET RUN STEPS` takes steps."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.training.build import build_trainer, resolve
from crossbatch.training.distributed.start import joined
from crossbatch.training.loop import EarlyStopping
from crossbatch.training.run_folder import RunFolder

RECIPE = Recipe.from_dict(
    {
        "model": {
            "name": "youtube_dnn",
            "dim": 8,
            "item_features": [],
            "user_features": [],
            "normalize": False,
            "history_dropout": 0.0,
        },
        "sampler": {
            "name": "cross_batch",
            "capacity": 70,
            "warmup_steps": 1,
            "item_gradient": "balanced",
        },
        "loss": {"temperature": 1.0},
        "train": {
            "schedule": "constant",
            "adam": "dense",
            "lr": 0.001,
            "max_steps": 1_000_000,
            "batch_size": 31,
            "tables": "sharded",
            "table_lr": 0.02,
            "device": "cpu",
        },
    }
)


def resumed(dataset, folder: RunFolder, ranks=None):
    """A trainer in the state of the folder's newest checkpoint."""
    trainer = build_trainer(resolve(RECIPE, dataset), dataset, ranks=ranks)
    folder.load_checkpoint(trainer, EarlyStopping(1), print)
    return trainer


def steps(dataset, trainer, count: int) -> list[float]:
    batches = dataset.batches(RECIPE.train.batch_size, seed=0, start=trainer.step)
    return [float(trainer.train_step(next(batches)).loss) for _ in range(count)]


def metrics(dataset, trainer, ranks=None) -> dict[str, float]:
    recipe = resolve(replace(RECIPE), dataset)
    return RunEvaluator(dataset, recipe, ranks).validate(trainer.model).means()


if __name__ == "__main__":
    torch.set_num_threads(1)
    data, run = open_dataset(Path(sys.argv[1])), Path(sys.argv[2])
    with joined(timeout=1800) as group:
        place = RunFolder(run, resume=True, writes=group.first)
        trained = resumed(data, place, group)
        found = {"losses": steps(data, trained, int(sys.argv[3]))}
        found["metrics"] = metrics(data, trained, group)
        place.save_checkpoint(trained, EarlyStopping(1), {}, keep=9)
        if place.writes:
            (run / f"{group.size}.json").write_text(json.dumps(found))
    # All is saved. TorchRec's threads now and then abort the end of the interpreter.
    os._exit(0)
