"""From a recipe and a dataset to towers, a sampler and a trainer.

trainer = build_trainer(resolve(recipe, dataset), dataset)
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.config import Recipe, build, check_options, filled
from crossbatch.errors import ConfigError
from crossbatch.models import MODELS, FeatureTable, ItemTower, build_model
from crossbatch.negatives import SAMPLERS, Corpus, NegativeSampler, no_correction
from crossbatch.training.distributed.sharded_table import ShardedTable
from crossbatch.training.distributed.trainer import RankTrainer
from crossbatch.training.optimizers import Adam
from crossbatch.training.step import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crossbatch.config import TrainConfig
    from crossbatch.data import Batch, Dataset, Feature
    from crossbatch.models import TwoTower
    from crossbatch.training.distributed.ranks import Ranks

PASSES = 5  # over the training samples, where a recipe does not say how long to train
# `[sampler] name = "auto"`: what a step may cost, as a multiple of the in-batch step.
AUTO: dict[str, Any] = {"name": "auto", "budget": 1.2}


def resolve(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe with the length of training and the sampler's defaults written out.

    The default warm-up is one pass over the training samples, which is what the paper's 40,000
    iterations are on its data.
    """
    recipe = replace(recipe, train=_with_steps(recipe.train, dataset))
    sampler = dict(recipe.sampler)
    if sampler["name"] == "auto":  # chosen when training begins: see `auto_sampler`
        return replace(recipe, sampler=_auto_options(sampler))
    if sampler["name"] == "cross_batch" and "warmup_steps" not in sampler:
        samples = dataset.num_samples(recipe.train.min_history)
        sampler["warmup_steps"] = math.ceil(samples / recipe.train.batch_size)
    if sampler["name"] in SAMPLERS:  # otherwise `build_sampler` names the nearest one
        sampler = filled(SAMPLERS[sampler["name"]], sampler)
    return replace(recipe, sampler=sampler)


def _with_steps(train: TrainConfig, dataset: Dataset) -> TrainConfig:
    """The options with `max_steps` written out: `PASSES` over the samples, in whole evaluations."""
    if train.max_steps:
        return train
    steps = PASSES * dataset.num_samples(train.min_history) / train.batch_size
    return replace(train, max_steps=math.ceil(steps / train.eval_every) * train.eval_every)


def _auto_options(sampler: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(sampler) - set(AUTO))
    if unknown:
        raise ConfigError(f"unknown key sampler.{unknown[0]}; an auto sampler knows: budget")
    budget = (AUTO | sampler)["budget"]
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget >= 1:
        raise ConfigError(f"sampler.budget must be 1 in-batch step or more, got {budget!r}")
    return AUTO | sampler


def build_towers(recipe: Recipe, dataset: Dataset, ranks: Ranks | None = None) -> TwoTower:
    """The two towers that `[model]` describes, over the dataset's features.

    Their id table is spread over the `ranks` where `train.tables` asks for it.
    """
    config = recipe.model
    if config.name == "auto":  # see `auto_model`
        raise ConfigError(
            'model.name is "auto", which crossbatch.fit and `crossbatch train` decide before they '
            f"build towers; name one of {', '.join(MODELS)}"
        )
    check_options(ItemTower, "model.item", config.item)
    if config.name in MODELS:  # otherwise `build_model` names the nearest one
        check_options(MODELS[config.name], "model", config.tower)
    tower = config.tower | _own_temperature(recipe)
    items = _feature_tables("model.item_features", config.item_features, dataset.item_features)
    users = _feature_tables("model.user_features", config.user_features, dataset.user_features)
    try:
        return build_model(
            config.name,
            dataset.num_items,
            config.dim,
            tower=tower,
            item=config.item,
            item_features=items,
            user_features=users,
            history=config.history,
            normalize=config.normalize,
            history_dropout=config.history_dropout,
            id_table=_sharded_table(recipe, dataset.num_items) if ranks is not None else None,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[model] {error}") from error


def _own_temperature(recipe: Recipe) -> dict[str, Any]:
    """Options of a tower whose queries are divided by the temperature: it is that of the loss."""
    make = MODELS.get(recipe.model.name)
    if make is None or "temperature" not in inspect.signature(make).parameters:
        return {}
    for key in ("temperature", "learn_temperature"):
        if key in recipe.model.tower:
            raise ConfigError(f"model.tower.{key} follows loss.{key}; set that instead")
    loss = recipe.loss
    return {"temperature": loss.temperature, "learn_temperature": loss.learn_temperature}


def build_sampler(recipe: Recipe, dataset: Dataset) -> NegativeSampler:
    """The sampler that `[sampler]` names, with the estimate of q that `[loss]` asks for."""
    train = recipe.train
    estimates = {
        "sampler_law": lambda: torch.from_numpy(
            np.array(dataset.sampling_law(train.min_history, train.sample_by))
        ),
        "frequency": lambda: torch.from_numpy(np.array(dataset.item_counts)),
        "none": lambda: no_correction(dataset.num_items),
    }
    corpus = Corpus(estimates[recipe.loss.q](), recipe.model.dim)
    return build(SAMPLERS, "sampler", recipe.sampler, corpus)


def draw_batches(train: TrainConfig, dataset: Dataset, **options: Any) -> Iterator[Batch]:
    """Training batches as `[train]` says, unless `options` of `Dataset.batches` say otherwise."""
    names = ("batch_size", "seed", "history_length", "min_history", "sample_by")
    return dataset.batches(**({name: getattr(train, name) for name in names} | options))


def build_trainer(
    recipe: Recipe,
    dataset: Dataset,
    model: torch.nn.Module | None = None,
    ranks: Ranks | None = None,
) -> Trainer:
    """Everything that a training step needs, on the recipe's device; the recipe is resolved.

    A `model` of the caller's own (`TwoTowerModel`) takes the place of the recipe's towers.
    """
    train = recipe.train
    if ranks is not None:
        ranks.check_batch(train.batch_size)
    device = pick_device(train.device)
    torch.manual_seed(train.seed)
    towers: Any = (build_towers(recipe, dataset, ranks) if model is None else model).to(device)
    sampler = build_sampler(recipe, dataset).to(device)
    # Towers that divide their queries themselves leave nothing for the loss to divide.
    divides = model is None and bool(_own_temperature(recipe))
    temperature = 1.0 if divides else recipe.loss.temperature
    log_temperature = torch.tensor(math.log(temperature), device=device)
    if recipe.loss.learn_temperature and not divides:
        log_temperature = torch.nn.Parameter(log_temperature)
    optimizer = Adam(
        towers,
        lr=train.lr,
        schedule=train.schedule,
        total_steps=max(1, train.max_steps // train.accumulate),
        semantics=train.adam,
        weight_decay=train.weight_decay,
        extra=[log_temperature] if isinstance(log_temperature, torch.nn.Parameter) else [],
        tables="adam" if train.tables == "adam" else "adagrad",
        table_lr=train.table_lr,
    )
    kind = Trainer if ranks is None else partial(RankTrainer, ranks=ranks, seed=train.seed)
    return kind(
        towers,
        sampler,
        optimizer,
        log_temperature=log_temperature,
        mask=recipe.loss.mask,
        mask_history=recipe.loss.mask_history,
        mask_later=recipe.loss.mask_later,
        l2=recipe.loss.l2,
        accumulate=train.accumulate,
        autocast=torch.bfloat16 if train.precision == "bfloat16" else None,
        chunk_size=recipe.loss.chunk_size or None,
    )


def _sharded_table(recipe: Recipe, num_items: int) -> ShardedTable | None:
    if recipe.train.tables != "sharded":
        return None
    if not recipe.model.item.get("id", True):
        raise ValueError('train.tables="sharded" needs an id table; id=false has none')
    dim = recipe.model.item.get("id_dim") or recipe.model.dim
    return ShardedTable(num_items + 1, dim, lr=recipe.train.table_lr, seed=recipe.train.seed)


def pick_device(name: str) -> torch.device:
    """The device that `train.device` means here."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError('train.device is "cuda", but torch sees no GPU; use "auto" or "cpu"')
    return torch.device(name)


def _feature_tables(
    key: str, wanted: tuple[str, ...], features: Mapping[str, Feature]
) -> dict[str, FeatureTable]:
    """The features that a recipe names; `["*"]` stands for all."""
    names = list(features) if wanted == ("*",) else list(wanted)
    for name in names:
        if name not in features:
            known = ", ".join(features) or "none"
            raise ConfigError(f"{key} names {name!r}, but the dataset has: {known}")
    found = {name: features[name] for name in names}
    return {
        name: FeatureTable.from_arrays(each.kind, each.values, each.offsets, each.num_values)
        for name, each in found.items()
    }
