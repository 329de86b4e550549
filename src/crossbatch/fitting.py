"""`fit`: a recipe and a dataset in, a run folder out; killed at any moment, it resumes exactly.

result = fit(open_dataset("books"), Recipe.load(Path("recipes/demo.toml")), "runs/first")

It joins `training`, which takes the steps, with `evaluation`, which measures the towers: neither
`crossbatch.training.run` nor anything below it imports evaluation code. `crossbatch.fit` and
`crossbatch.training.fit` are this function.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.training.auto_model import MOST_USERS, choose_model
from crossbatch.training.build import resolve
from crossbatch.training.distributed.start import joined, restarted, together
from crossbatch.training.progress import Progress
from crossbatch.training.run import Plan, train_run
from crossbatch.training.run_folder import RunFolder

if TYPE_CHECKING:
    import torch

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training.run import Probe
    from crossbatch.training.trackers import Tracker


def fit(
    dataset: Dataset,
    recipe: Recipe,
    out: Path | str,
    *,
    model: torch.nn.Module | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    trackers: tuple[Tracker, ...] = (),
    probe: Probe | None = None,
    test: bool = True,
) -> dict[str, Any]:
    """Train until early stopping, restore the best model, evaluate it on the test users.

    Processes that torchrun started train one model together: see `training.distributed`.

    Args:
        dataset: What to train on.
        recipe: What to train.
        out: Run folder, empty or absent unless `resume`.
        model: Towers of your own instead of `recipe.model`: any module whose call gives `(u, v)` of
            a batch and that has methods `users` and `items`, as `TwoTower` does.
        resume: Whether to continue the run in `out`. A finished one returns its result. A process
            that torchrun started again resumes in any case.
        progress: Where to show progress; silent by default.
        trackers: Further places that journal lines go to; an exception of theirs ends the run.
        probe: Measures beside training; its time is not training time.
        test: Whether to look at the test users. A search for settings must not.

    Returns:
        The content of `result.json`.

    Raises:
        Interrupted: If Ctrl-C ended training; a checkpoint was saved.
        DivergedError: If the loss was not finite; the last good checkpoint stays.
    """
    recipe = resolve(recipe, dataset)
    if model is not None and recipe.model.name == "auto":
        raise ConfigError('model= was passed, but model.name is "auto": leave one of them out')
    with joined() as ranks:
        writes = ranks is None or ranks.first
        continues = resume or restarted()
        folder = together(ranks, lambda: RunFolder(Path(out), resume=continues, writes=writes))
        try:
            evaluator = RunEvaluator(dataset, recipe, ranks)
            shown, race = (writes and progress) or Progress(), None
            if recipe.model.name == "auto":
                measure, say = partial(_validation_metric, dataset), shown.say
                choose = partial(choose_model, recipe, dataset, folder, measure, say, ranks)
                race = together(ranks, choose)
                recipe = race.applied_to(recipe)
                evaluator = RunEvaluator(dataset, recipe, ranks)
            plan = Plan(
                dataset,
                recipe,
                evaluator,
                model,
                shown,
                trackers if writes else (),
                probe,
                test,
                ranks,
                race,
            )
            return train_run(plan, folder)
        finally:
            folder.close()


def _validation_metric(dataset: Dataset, model: torch.nn.Module, recipe: Recipe) -> float:
    """What early stopping looks at, of few enough users for a race of candidates."""
    train = recipe.train
    users = min(train.eval_users or MOST_USERS, MOST_USERS)
    means = RunEvaluator(dataset, recipe).validate(model, users).means()
    return means[train.metric]
