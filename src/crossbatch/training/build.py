"""From a recipe and a dataset to towers, a sampler and a trainer.

trainer = build_trainer(resolve(recipe, dataset), dataset)
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from crossbatch.config import ModelConfig, Recipe, TrainConfig, build, check_options, filled
from crossbatch.data.dataset.features import read_encoders
from crossbatch.data.dataset.shards import EVENT_BITS
from crossbatch.errors import ConfigError
from crossbatch.files import file_checksum
from crossbatch.kernels.memory import keep_freed_memory
from crossbatch.models import MODELS, FeatureTable, Inputs, ItemTower, TwoTower, build_model
from crossbatch.models.build import item_tower_class
from crossbatch.models.huggingface_states import read_config
from crossbatch.models.own_towers import check_tower_options, find_tower, is_path
from crossbatch.negatives import SAMPLERS, Corpus, NegativeSampler, no_correction
from crossbatch.training.distributed.sharded_table import ShardedTable
from crossbatch.training.distributed.trainer import RankTrainer
from crossbatch.training.optimizers import Adam
from crossbatch.training.step import Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from crossbatch.data import Batch, Dataset, Feature
    from crossbatch.training.distributed.ranks import Ranks

PASSES = 5  # over the training samples, where a recipe does not say how long to train
# `[sampler] name = "auto"`: what a step may cost, as a multiple of the in-batch step.
AUTO: dict[str, Any] = {"name": "auto", "budget": 1.2}


def resolve(recipe: Recipe, dataset: Dataset) -> Recipe:
    """The recipe with the length of training, the sampler's defaults and an encoder's config.

    The default warm-up is one pass over the training samples, which is what the paper's 40,000
    iterations are on its data.
    """
    recipe = replace(recipe, train=_with_steps(recipe.train, dataset))
    recipe = replace(recipe, model=_with_encoder_config(recipe.model, dataset))
    sampler = dict(recipe.sampler)
    if sampler["name"] == "auto":  # chosen when training begins: see `auto_sampler`
        return replace(recipe, sampler=_auto_options(sampler))
    if sampler["name"] == "cross_batch" and "warmup_steps" not in sampler:
        samples = dataset.num_samples(recipe.train.min_history, recipe.train.newest_days)
        sampler["warmup_steps"] = math.ceil(samples / recipe.train.batch_size)
    if sampler["name"] in SAMPLERS:  # otherwise `build_sampler` names the nearest one
        sampler = filled(SAMPLERS[sampler["name"]], sampler)
    return replace(recipe, sampler=sampler)


def _with_steps(train: TrainConfig, dataset: Dataset) -> TrainConfig:
    """The options with `max_steps` written out: `PASSES` over the samples, in whole evaluations."""
    if train.max_steps:
        return train
    samples = dataset.num_samples(train.min_history, train.newest_days)
    steps = PASSES * samples / train.batch_size
    return replace(train, max_steps=math.ceil(steps / train.eval_every) * train.eval_every)


def _with_encoder_config(model: ModelConfig, dataset: Dataset) -> ModelConfig:
    """The options with the config of a Hugging Face encoder, so that the run can do without it.

    Raises:
        ConfigError: If there is no encoder, or the dataset's tokens are those of another one.
    """
    folder = model.item.get("model")
    if model.item_tower != "huggingface" or not isinstance(folder, str) or model.item.get("config"):
        return model
    try:
        config = read_config(folder)
    except ValueError as error:
        raise ConfigError(f"[model] {error}") from None
    own, column = Path(folder) / "tokenizer.json", model.item.get("column")
    if own.is_file():
        checksum = file_checksum(own)
        for name, encoder in read_encoders(dataset.path / "features/items").items():
            other = encoder.settings.get("tokenizer", checksum) != checksum
            if other and column in (None, "", name):
                raise ConfigError(
                    f"feature {name!r} has the token ids of another tokenizer than {own}: prepare "
                    f"the dataset with --tokenizer {folder}"
                )
    return replace(model, item=model.item | {"config": config})


def _auto_options(sampler: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(sampler) - set(AUTO))
    if unknown:
        raise ConfigError(f"unknown key sampler.{unknown[0]}; an auto sampler knows: budget")
    budget = (AUTO | sampler)["budget"]
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not budget >= 1:
        raise ConfigError(f"sampler.budget must be 1 in-batch step or more, got {budget!r}")
    return AUTO | sampler


def build_towers(
    recipe: Recipe, dataset: Dataset, ranks: Ranks | None = None, *, named: bool = True
) -> TwoTower:
    """The two towers that `[model]` describes, over the dataset's features.

    Their id table is spread over the `ranks` where `train.tables` asks for it. Import paths in a
    recipe that was read from a folder are not `named` by the caller: see `models.own_towers`. A
    whole model of the caller's own need not be a `TwoTower`, but has its `users` and `items`.
    """
    config = recipe.model
    if config.name == "auto":  # see `auto_model`
        raise ConfigError(
            'model.name is "auto", which crossbatch.fit and `crossbatch train` decide before they '
            f"build towers; name one of {', '.join(MODELS)}"
        )
    items = _feature_tables("model.item_features", config.item_features, dataset.item_features)
    users = _feature_tables("model.user_features", config.user_features, dataset.user_features)
    context = _feature_tables("model.context", config.context, dataset.context_features)
    try:
        if config.model:
            inputs = Inputs(
                dataset.num_items, config.dim, items, users, context, weights_follow=not named
            )
            whole: TwoTower = build_whole_model(config, inputs, named=named)
            return whole
        _check_tower_options(config, named=named)
        return build_model(
            config.name,
            dataset.num_items,
            config.dim,
            item_tower=config.item_tower,
            named=named,
            tower=config.tower | _own_temperature(recipe),
            item=config.item,
            item_features=items,
            user_features=users,
            context=context,
            history=config.history,
            normalize=config.normalize,
            history_dropout=config.history_dropout,
            context_dropout=config.context_dropout,
            id_table=_sharded_table(recipe, dataset.num_items) if ranks is not None else None,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(f"[model] {error}") from error


def build_whole_model(config: ModelConfig, inputs: Inputs, *, named: bool) -> Any:
    """The model that `model.model` names; raise `ValueError` if it lacks a method."""
    make = find_tower(config.model, named=named)
    check_tower_options(make, "model.options", config.options)
    model = make(inputs, **config.options)
    for method in ("users", "items"):
        if not callable(getattr(model, method, None)):
            raise ValueError(
                f"{config.model} needs a method {method}: see `crossbatch.training.step` for what "
                "a two-tower model has"
            )
    return model


def _check_tower_options(config: ModelConfig, *, named: bool) -> None:
    if not config.item_tower:
        check_options(ItemTower, "model.item", config.item)
    else:
        make: Any = item_tower_class(config.item_tower, named=named)
        check_tower_options(make, "model.item", config.item)
    if config.name in MODELS:  # otherwise `build_model` names the nearest one
        check_options(MODELS[config.name], "model", config.tower)
    elif is_path(config.name):
        check_tower_options(find_tower(config.name, named=named), "model.tower", config.tower)


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
    train, power = recipe.train, recipe.loss.q_power
    if power != 1 and recipe.sampler.get("streaming_q"):
        raise ConfigError(
            f"loss.q_power is {power}, but sampler.streaming_q learns q from the batches: leave "
            "one of them out"
        )
    estimates = {
        "sampler_law": lambda: torch.from_numpy(
            np.array(dataset.sampling_law(train.min_history, train.sample_by, train.newest_days))
        ),
        "frequency": lambda: torch.from_numpy(np.array(dataset.item_counts)),
        "none": lambda: no_correction(dataset.num_items),
    }
    counts = estimates[recipe.loss.q]()
    corpus = Corpus(counts if power == 1 else counts.double() ** power, recipe.model.dim)
    return build(SAMPLERS, "sampler", recipe.sampler, corpus)


def draw_batches(train: TrainConfig, dataset: Dataset, **options: Any) -> Iterator[Batch]:
    """Training batches as `[train]` says, unless `options` of `Dataset.batches` say otherwise."""
    drawn = ("min_history", "sample_by", "newest_days")
    names = ("batch_size", "seed", "history_length", "histories", *drawn)
    return dataset.batches(**({name: getattr(train, name) for name in names} | options))


def build_trainer(
    recipe: Recipe,
    dataset: Dataset,
    model: torch.nn.Module | None = None,
    ranks: Ranks | None = None,
    steps_before: int = 0,
) -> Trainer:
    """Everything that a training step needs, on the recipe's device; the recipe is resolved.

    A `model` of the caller's own (`TwoTowerModel`) takes the place of the recipe's towers; the
    optimiser is to continue after `steps_before` steps of an earlier run.
    """
    train = recipe.train
    if ranks is not None:
        ranks.check_batch(train.batch_size)
        if recipe.sampler.get("item_gradient") == "deferred":
            raise ConfigError(
                'sampler.item_gradient is "deferred", which several processes cannot share yet: '
                'set it to "balanced", or train in one process'
            )
        if dataset.shown is not None and recipe.loss.impressions:
            raise ConfigError(
                "loss.impressions is true, which several processes cannot share yet: set it to "
                "false, or train in one process"
            )
    keep_freed_memory()
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
    try:
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
            lr_of=train.lr_of,
            warmup_steps=math.ceil(train.warmup_steps / train.accumulate),
            clip_norm=train.clip_norm,
            steps_before=steps_before,
        )
    except ValueError as error:
        raise ConfigError(f"train.{error}") from None
    kind = Trainer if ranks is None else partial(RankTrainer, ranks=ranks, seed=train.seed)
    return kind(
        towers,
        sampler,
        optimizer,
        log_temperature=log_temperature,
        mask=recipe.loss.mask,
        mask_history=recipe.loss.mask_history,
        mask_later=recipe.loss.mask_later,
        targets=_drawn_items(recipe, dataset, device),
        l2=recipe.loss.l2,
        accumulate=train.accumulate,
        autocast=torch.bfloat16 if train.precision == "bfloat16" else None,
        chunk_size=recipe.loss.chunk_size or None,
    )


def _drawn_items(recipe: Recipe, dataset: Dataset, device: torch.device) -> torch.Tensor | None:
    """Which items the sampler may draw `[num_items + 1]`; None without impressions."""
    if dataset.shown is None or not recipe.loss.impressions:
        return None
    train = recipe.train
    law = dataset.sampling_law(train.min_history, train.sample_by, train.newest_days)
    return torch.from_numpy(law > 0).to(device)


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
    return {name: _feature_table(features[name]) for name in names}


def _feature_table(feature: Feature) -> FeatureTable:
    table = FeatureTable.from_arrays(
        feature.kind, feature.values, feature.offsets, feature.num_values
    )
    find = feature.elsewhere
    if find is None:
        return table

    @lru_cache(maxsize=1)  # a shard gives many batches, one after the other
    def of_shard(first_event: int) -> tuple[FeatureTable, int]:
        found, begin = find(first_event)
        return _feature_table(found), begin

    return replace(table, elsewhere=lambda event: of_shard(event >> EVENT_BITS << EVENT_BITS))
