"""`fit`: a recipe and a dataset in, a run folder out; killed at any moment, it resumes exactly.

result = fit(open_dataset("books"), Recipe.load("demo"), "runs/first")

It joins `training`, which takes the steps, with `evaluation`, which measures the towers: neither
`crossbatch.training.run` nor anything below it imports evaluation code. `crossbatch.fit` and
`crossbatch.training.fit` are this function.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossbatch.errors import ConfigError, DataError
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.models.own_towers import name_class, path_of
from crossbatch.remote import is_url, local_path
from crossbatch.results import FitResult
from crossbatch.training.auto_model import MOST_USERS, choose_model
from crossbatch.training.build import resolve
from crossbatch.training.cooccurrence import FirstVectors
from crossbatch.training.distributed.start import joined, restarted, together
from crossbatch.training.progress import Progress, Tracker
from crossbatch.training.run import Plan, Probe, train_run
from crossbatch.training.run_folder import RunFolder
from crossbatch.training.warm_start import LOG_TEMPERATURE, EarlierModel, begin, read_run

if TYPE_CHECKING:
    import torch

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset


def fit(
    dataset: Dataset,
    recipe: Recipe,
    out: Path | str,
    *,
    model: torch.nn.Module | type[torch.nn.Module] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    trackers: tuple[Tracker, ...] = (),
    probe: Probe | None = None,
    test: bool = True,
    start_from: Path | str | None = None,
) -> FitResult:
    """Train until early stopping, restore the best model, evaluate it on the test users.

    Processes that torchrun started train one model together: see `training.distributed`.

    Args:
        dataset: What to train on.
        recipe: What to train.
        out: Run folder, empty or absent unless `resume`.
        model: Towers of your own instead of those of `recipe.model`: a class that is built as
            `model.model` in a recipe is, or a module whose call gives `(u, v)` of a batch and that
            has methods `users` and `items`, as `TwoTower` does. A module can be evaluated and
            exported by the commands if its attribute `options` has the keyword arguments of its
            class.
        resume: Whether to continue the run in `out`. A finished one returns its result. A process
            that torchrun started again resumes in any case.
        progress: Where to show progress; silent by default.
        trackers: Further places that journal lines go to; an exception of theirs ends the run.
        probe: Measures beside training; its time is not training time.
        test: Whether to look at the test users. A search for settings must not.
        start_from: A run folder or a bundle folder whose weights to start from. The model is then
            that one's, and a key of the recipe that says otherwise is refused.

    Returns:
        The content of `result.json`, a dictionary whose keys are attributes too.

    Raises:
        DataError: If the dataset has no validation users.
        Interrupted: If Ctrl-C ended training; a checkpoint was saved.
        DivergedError: If the loss was not finite; the last good checkpoint stays.
    """
    recipe, model = _with_own_model(resolve(recipe, dataset), model)
    if model is not None and recipe.model.name == "auto":
        raise ConfigError('model= was passed, but model.name is "auto": leave one of them out')
    if not dataset.num_eval_users("valid"):
        raise DataError(
            f"{dataset.path} has no validation users, who choose the best model: prepare it with a "
            "larger --valid-share, or from a longer log"
        )
    if start_from is not None and model is not None:
        raise ConfigError(
            "start_from= was passed with model=: load the weights into your model before fit"
        )
    if start_from is not None and recipe.train.tables == "sharded":
        raise ConfigError(
            'train.tables is "sharded", whose rows cannot start from an earlier model yet: set it '
            'to "adagrad", or leave --from out'
        )
    if is_url(out):
        raise ConfigError(
            f"a run is written while it trains, so its folder must be on this machine, got {out}: "
            "export it there afterwards"
        )
    with joined() as ranks:
        writes = ranks is None or ranks.first
        continues = resume or restarted()
        folder = together(ranks, lambda: RunFolder(Path(out), resume=continues, writes=writes))
        try:
            shown, race = (writes and progress) or Progress(), None
            vectors: FirstVectors | None = None
            if test and not dataset.num_eval_users("test"):
                test = False
                shown.say("the dataset has no test users: the result is of validation users alone")
            path = None if start_from is None else local_path(start_from)
            moments = recipe.train.moments == "keep"
            start = together(ranks, lambda: begin(path, folder, read_earlier, moments=moments))
            if start is not None:
                recipe = start.applied_to(recipe)
            evaluator = RunEvaluator(dataset, recipe, ranks, shown.items)
            if recipe.model.name == "auto":
                measure, say = partial(_validation_metric, dataset), shown.say
                vectors = FirstVectors(dataset, recipe.train)
                choose = partial(choose_model, recipe, dataset, folder, measure, say, ranks)
                race = together(ranks, partial(choose, vectors=vectors))
                recipe = race.applied_to(recipe)
                evaluator = RunEvaluator(dataset, recipe, ranks, shown.items)
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
                start,
                vectors,
            )
            return FitResult(train_run(plan, folder))
        finally:
            folder.close()


def _with_own_model(
    recipe: Recipe, model: torch.nn.Module | type[torch.nn.Module] | None
) -> tuple[Recipe, torch.nn.Module | None]:
    """The recipe with the import path of `model`, where that can be rebuilt; the module, if any.

    Without it the run could not be opened again: the recipe names no towers that were trained.
    """
    if model is None:
        return recipe, None
    options: Any = recipe.model.options
    kind = model if isinstance(model, type) else type(model)
    if not isinstance(model, type):
        options = getattr(model, "options", None)
        if not isinstance(options, dict) or path_of(kind) is None:
            return recipe, model
    try:
        path, options = name_class(kind), json.loads(json.dumps(options))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"model= {error}") from None
    described = replace(
        recipe.model,
        name=path,
        model=path,
        user_tower="",
        item_tower="",
        tower={},
        item={},
        options=options,
    )
    return replace(recipe, model=described), None if isinstance(model, type) else model


def read_earlier(path: Path) -> EarlierModel:
    """The model of a run folder or a bundle folder.

    Raises:
        DataError: If it is neither, or damaged.
    """
    if (path / "bundle.json").is_file():
        return _read_bundle(path)
    if (path / "config.json").is_file():
        return read_run(path)
    raise DataError(
        f"--from {path} is neither a run folder (no config.json) nor a bundle folder "
        "(no bundle.json): pass what `crossbatch train` or `crossbatch export` wrote"
    )


def _read_bundle(path: Path) -> EarlierModel:
    """The model of a bundle folder; items that were added after training are not in it."""
    from crossbatch.serving import BundleError, open_bundle  # only where it is needed

    bundle = open_bundle(path)
    trained, state = bundle.manifest["items"]["trained"], bundle.whole_state()
    temperature = bundle.manifest["origin"].get("temperature")
    if type(temperature) not in (int, float):
        raise BundleError(f"{path} does not say its temperature: export the run again")
    if LOG_TEMPERATURE in state:  # which may have been learned
        found = math.exp(float(state[LOG_TEMPERATURE]))
        temperature = temperature if math.isclose(found, temperature, rel_tol=1e-6) else found
    return EarlierModel(
        bundle.config,
        bundle.history_length,
        temperature,
        state,
        bundle.catalogue.item_keys(range(trained + 1)),
        bundle.item_counts[: trained + 1],
        bundle.item_encoders,
        {**bundle.user_encoders, **bundle.context_encoders},
    )


def _validation_metric(dataset: Dataset, model: torch.nn.Module, recipe: Recipe) -> float:
    """What early stopping looks at, of few enough users for a race of candidates."""
    evaluator = RunEvaluator(dataset, recipe)
    found = evaluator.validate(model, MOST_USERS)
    if evaluator.exclude_seen and found.unseen is not None:
        found = found.unseen
    return found.means()[recipe.train.metric]
