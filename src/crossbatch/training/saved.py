"""Open a finished run: its recipe, its dataset, its best towers.

saved = open_run(Path("runs/first"))
saved.towers.users(history)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.errors import DataError
from crossbatch.evaluation import Popularity, evaluate, evaluate_recommender
from crossbatch.evaluation.baselines import BASELINES
from crossbatch.files import read_document, verify_checksums
from crossbatch.training import checkpoint
from crossbatch.training.assemble import build_towers
from crossbatch.training.distributed.ranking import evaluate_together
from crossbatch.training.run_folder import own_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from crossbatch.data import Dataset, EvalBatch
    from crossbatch.evaluation import Evaluation
    from crossbatch.models import TwoTower
    from crossbatch.training.distributed.ranks import Ranks


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run's best towers and what they were trained on."""

    recipe: Recipe
    dataset: Dataset
    towers: TwoTower
    best_step: int


def open_run(path: Path, *, data: Path | None = None) -> SavedRun:
    """Load the best model of a run folder, in evaluation mode.

    Args:
        path: The run folder.
        data: Dataset folder, if it is not where training found it.

    Raises:
        DataError: If the folder holds no trained model or one of the caller's own class, or the
            dataset is another one.
    """
    verify_checksums(path)
    config = read_document(path / "config.json", f"{path} is no run folder, or a damaged one")
    own = own_model(path, config)
    if own is not None:
        raise DataError(
            f"{path} was trained with a model of the caller's own, of class {own}, which no recipe "
            "can name: evaluate it in Python, by crossbatch.evaluation.evaluate on that model"
        )
    try:
        recipe = Recipe.from_dict({k: config[k] for k in ("model", "sampler", "loss", "train")})
        place, checksum = Path(config["dataset"]["path"]), config["dataset"]["checksum"]
    except (KeyError, TypeError) as error:
        raise DataError(f"{path}/config.json is not that of a run: it lacks {error}") from None
    dataset = open_dataset(data or place)
    if dataset.manifest["checksum"] != checksum:
        raise DataError(f"{dataset.path} is not the dataset that {path} was trained on")
    dataset.verify()
    if not (path / "best").is_dir():
        raise DataError(f"{path} has no best model yet; train until its first evaluation")
    tensors, document = checkpoint.load(path / "best")
    towers = build_towers(recipe, dataset)
    prefix = "model."
    state = {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}
    try:
        towers.load_state_dict(state)
        step = int(document["step"])
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise DataError(f"{path}/best does not fit the run's recipe: {error}") from None
    return SavedRun(recipe, dataset, towers.eval(), step)


def evaluate_runs(
    paths: Sequence[Path],
    split: str,
    *,
    data: Path | None = None,
    exclude_history: bool = False,
    baselines: bool = True,
    ranks: Ranks | None = None,
) -> dict[str, dict[str, Any]]:
    """Metrics and intervals of the runs' best models and, before them, of the baselines.

    Baselines see the dataset and the history length of the first run. Where there are several
    `ranks`, they share the ranking of the models.
    """
    measure = evaluate if ranks is None else partial(evaluate_together, ranks)
    runs = {str(path): open_run(path, data=data) for path in paths}
    table: dict[str, dict[str, Any]] = {}
    first = next(iter(runs.values()))
    for name, build in BASELINES.items() if baselines else ():
        table[name] = _entry(
            evaluate_recommender(
                build(first.dataset),
                _eval_batches(first, split),
                popularity=Popularity.from_counts(np.array(first.dataset.item_counts)),
                exclude_history=exclude_history,
            )
        )
    for path, saved in runs.items():
        table[path] = _entry(
            measure(
                saved.towers,
                _eval_batches(saved, split),
                item_counts=np.array(saved.dataset.item_counts),
                exclude_history=exclude_history,
            )
        ) | {"model": saved.recipe.model.name, "sampler": saved.recipe.sampler["name"]}
    return table


def _eval_batches(saved: SavedRun, split: str) -> Iterator[EvalBatch]:
    return saved.dataset.eval_batches(split, history_length=saved.recipe.train.history_length)


def _entry(evaluation: Evaluation) -> dict[str, Any]:
    metrics = {k: v if v == v else None for k, v in evaluation.means().items()}
    intervals = {k: [i.low, i.high] for k, i in evaluation.intervals().items() if i.low == i.low}
    return {"metrics": metrics, "intervals": intervals, "num_users": evaluation.num_users}
