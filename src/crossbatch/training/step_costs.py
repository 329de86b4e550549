"""`measure`: what negatives cost on the user's own towers, timed in turn before training."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.negatives import Candidates, CrossBatchSampler
from crossbatch.training.assemble import build_sampler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training.step import Trainer, TrainingBatch

ROUNDS = 15  # the strategies are timed in turn, so that a busy machine slows all of them
WARM_UP = 3  # first rounds, not counted
BLOCK = 4  # steps of a turn: the first finds the caches as the others left them and does not count
DRAWN = 64  # batches that are drawn to time it: they are made in blocks
# Columns added for timing, in batches: few tell what it costs to have any, many what each costs.
UNIFORM_PROBES, CACHED_PROBES = (0.25, 4), (1, 8)


@dataclass(frozen=True, slots=True)
class Costs:
    """Time of a step and of what may be added to it, in seconds."""

    in_batch: float
    per_uniform: float  # a column that is encoded, with gradient
    per_cached: float  # a column out of a bank
    any_uniform: float = 0.0  # for the first of them
    any_cached: float = 0.0
    masking: float = 0.0  # of later items


def measure(trainer: Trainer, recipe: Recipe, dataset: Dataset) -> Costs:
    """Time in-batch, uniform and cached columns; the trainer's towers are trained by that."""
    B = recipe.train.batch_size
    device = trainer.log_temperature.device
    samplers = {
        name: build_sampler(replace(recipe, sampler=options), dataset).to(device)
        for name, options in _probes(B, dataset.num_items).items()
    }
    length = recipe.train.history_length
    batches = dataset.batches(B, seed=recipe.train.seed, history_length=length, later=True)
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(ROUNDS):
        turn = [next(batches).to(device) for _ in range(BLOCK)]
        for name, trainer.sampler in samplers.items():
            if number == 0 and isinstance(trainer.sampler, CrossBatchSampler):
                _fill(trainer.sampler, turn[0].item_ids)
            trainer.mask_later = name == "masked"
            taken[name].append(fmean([_step_seconds(trainer, batch) for batch in turn][1:]))
    seconds = {name: min(steps[WARM_UP:]) for name, steps in taken.items()}
    base = seconds["in_batch"]
    few, many = (min(max(1, int(share * B)), dataset.num_items) for share in UNIFORM_PROBES)
    any_uniform, per_uniform = _line(base, (few, seconds["few"]), (many, seconds["uniform"]))
    few, many = (int(share * B) for share in CACHED_PROBES)
    any_cached, per_cached = _line(base, (few, seconds["few_cached"]), (many, seconds["cached"]))
    drawing = _drawing_seconds(recipe, dataset, True) - _drawing_seconds(recipe, dataset, False)
    masking = max(seconds["masked"] - base + drawing, 0.0)
    return Costs(base, per_uniform, per_cached, any_uniform, any_cached, masking)


def _line(
    base: float, few: tuple[int, float], many: tuple[int, float], least: float = 1e-9
) -> tuple[float, float]:
    """What it costs beyond `base` to have any columns, and each of them: two points of a line."""
    if many[0] <= few[0]:  # a catalogue smaller than the probes
        return 0.0, max((many[1] - base) / many[0], least)
    each = max((many[1] - few[1]) / (many[0] - few[0]), least)
    return max(few[1] - base - each * few[0], 0.0), each


def _step_seconds(trainer: Trainer, batch: TrainingBatch) -> float:
    if batch.item_ids.is_cuda:
        torch.cuda.synchronize()
    # On a CPU what counts is the work: the time on the wall depends on who else is computing.
    clock = time.perf_counter if batch.item_ids.is_cuda else time.process_time
    start = clock()
    trainer.train_step(batch)
    if batch.item_ids.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def _drawing_seconds(recipe: Recipe, dataset: Dataset, later: bool) -> float:
    """Time to draw a batch, with or without what came later."""
    train, taken = recipe.train, []
    batches = dataset.batches(
        train.batch_size, seed=train.seed, history_length=train.history_length, later=later
    )
    for _ in range(WARM_UP):
        start = time.process_time()
        deque(islice(batches, DRAWN), maxlen=0)
        taken.append((time.process_time() - start) / DRAWN)
    return min(taken)


def _fill(sampler: CrossBatchSampler, item_ids: Tensor) -> None:
    vectors = torch.randn(len(item_ids), sampler.dim, device=item_ids.device)
    for _ in range(-(-sampler.bank.capacity // len(item_ids))):
        sampler.observe(Candidates(vectors, item_ids, sampler.log_q(item_ids)))


def _probes(B: int, num_items: int) -> Mapping[str, dict[str, Any]]:
    few, many = (min(max(1, int(share * B)), num_items) for share in UNIFORM_PROBES)
    bank = {"name": "cross_batch", "item_gradient": "balanced", "warmup_steps": 0}
    few_cached, many_cached = ({"capacity": int(share * B)} for share in CACHED_PROBES)
    return {
        "in_batch": {"name": "in_batch"},
        "masked": {"name": "in_batch"},
        "few": {"name": "mixed", "num_uniform": few},
        "uniform": {"name": "mixed", "num_uniform": many},
        "few_cached": bank | few_cached,
        "cached": bank | many_cached,
    }
