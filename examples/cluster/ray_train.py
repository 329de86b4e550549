"""Train on the workers of a Ray cluster.

    python examples/cluster/ray_train.py RECIPE DATASET RUN WORKERS

Ray creates the process group, and `fit` uses it. All paths must be visible to all workers. If a
worker fails, the others stop too; Ray restarts all of them, and they resume from the newest
checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def train(config: dict[str, Any]) -> None:
    """Train or resume the run; called on every worker."""
    from crossbatch import Recipe, fit, open_dataset

    run = Path(config["run"])
    fit(
        open_dataset(config["data"]),
        Recipe.load(Path(config["recipe"])),
        run,
        resume=(run / "config.json").exists(),
    )


def main() -> None:
    """Start the workers."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    recipe, data, run, workers = sys.argv[1:]
    TorchTrainer(
        train,
        train_loop_config={
            name: str(Path(path).resolve())
            for name, path in (("recipe", recipe), ("data", data), ("run", run))
        },
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=int(workers)),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()


if __name__ == "__main__":
    main()
