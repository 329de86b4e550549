"""`advise`: which negatives suit a dataset and its towers, measured before training begins.

    advice = advise(recipe, dataset)
    advice.sampler        # {"name": "mixed", "num_uniform": 256, "every": 4}
    advice.reason         # one plain statement of what was measured and what follows

The rule spends a fixed share of an in-batch step's time (`budget`) on further negatives, and spends
it where our measurements say that it buys most (docs/negatives.md): on every item of the catalogue
if they fit; else, for one normalised vector a user, on uniform items with gradient (with dot
products or several interests they did harm), every so many steps where having any at all is what
costs; and on cached vectors only where encoding an item is too dear for that. Before any of that,
where users like many of the batch's items, what a user came to like later is taken out of its
negatives.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.negatives import Candidates, CrossBatchSampler, known_positives_mask
from crossbatch.training.assemble import AUTO, build_sampler, build_trainer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.models import TwoTower
    from crossbatch.training.trainer import Trainer, TrainingBatch

ROUNDS = 15  # the strategies are timed in turn, so that a busy machine slows all of them
WARM_UP = 3  # first rounds, not counted
BLOCK = 4  # steps of a turn: the first finds the caches as the others left them and does not count
MARGIN = 0.8  # of the allowance that is spent: a long run costs more than a short look says
# Columns added for timing, in batches: few tell what it costs to have any, many what each costs.
UNIFORM_PROBES, CACHED_PROBES = (0.25, 4), (1, 8)
TURNS = (1, 2, 4)  # steps from one draw of uniform items to the next
MOST_UNIFORM, MOST_CACHED = 8, 16  # in batches: about the paper's 1152 and 2432 at B = 128
LATER_SHARE = 0.001  # of a batch's columns that the row's user likes later; fewer change nothing
LATER_BATCHES = 16  # that it is counted in
DRAWN = 64  # batches that are drawn to time it: they are made in blocks
# A bank that needs no study: unbiased, no warm-up to choose, switched off where it does harm.
SAFE_BANK = {"item_gradient": "balanced", "warmup_steps": 0, "max_staleness": 0.1, "guard": True}


@dataclass(frozen=True, slots=True)
class Advice:
    """What to sample from, and why.

    Attributes:
        sampler: The `[sampler]` section to use.
        reason: What was measured and what follows from it, in a sentence or two.
        facts: The measurements.
        loss: What to change in the `[loss]` section.
    """

    sampler: dict[str, Any]
    reason: str
    facts: dict[str, float]
    loss: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ", ".join(f"{k} = {v}" for k, v in self.sampler.items() if k != "name")
        chosen = self.sampler["name"] + (f" ({options})" if options else "")
        return f"negatives chosen: {chosen}, because {self.reason}"

    def applied_to(self, recipe: Recipe) -> Recipe:
        """The recipe with what was chosen."""
        return replace(recipe, sampler=self.sampler, loss=replace(recipe.loss, **self.loss))

    def to_dict(self) -> dict[str, Any]:
        """As `config.json` keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Costs:
    """Time of a step and of what may be added to it, in seconds."""

    in_batch: float
    per_uniform: float  # a column that is encoded, with gradient
    per_cached: float  # a column out of a bank
    any_uniform: float = 0.0  # for the first of them
    any_cached: float = 0.0
    masking: float = 0.0  # of later items


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known without measuring."""

    batch_size: int
    num_items: int
    collision: float  # Σq², the probability that two positives are the same item
    normalized: bool  # whether vectors have length 1
    later: float = 0.0  # share of a batch's columns that the row's user likes later
    interests: int = 1  # vectors of a user


def is_auto(recipe: Recipe) -> bool:
    """Whether the sampler is to be chosen."""
    return bool(recipe.sampler["name"] == "auto")


def advise(recipe: Recipe, dataset: Dataset, model: torch.nn.Module | None = None) -> Advice:
    """Measure the towers on one batch and choose.

    Args:
        recipe: With any sampler; `budget` of an `"auto"` one holds.
        dataset: What would be trained on.
        model: Towers of the caller's own instead of the recipe's.
    """
    budget = (AUTO | recipe.sampler if is_auto(recipe) else AUTO)["budget"]
    plain = replace(recipe, sampler={"name": "in_batch"})
    trainer = build_trainer(plain, dataset, copy.deepcopy(model))
    costs = measure(trainer, recipe, dataset)
    law = torch.from_numpy(dataset.sampler_law.copy())
    facts = Facts(
        recipe.train.batch_size,
        dataset.num_items,
        float(law @ law),
        recipe.model.normalize,
        later_share(recipe, dataset),
        _interests(trainer, recipe, dataset),
    )
    return choose(costs, facts, budget)


def choose(costs: Costs, facts: Facts, budget: float) -> Advice:
    """The rule, from the measurements alone.

    Args:
        costs: Measured.
        facts: Known.
        budget: What a step may cost, in in-batch steps.
    """
    spare = MARGIN * (budget - 1) * costs.in_batch
    masks = facts.later >= LATER_SHARE and costs.masking <= spare
    spare -= costs.masking if masks else 0.0
    uniform = {turn: (turn * spare - costs.any_uniform) / costs.per_uniform for turn in TURNS}
    cached = (spare - costs.any_cached) / costs.per_cached
    sampler, choice = _affordable(uniform, cached, facts)
    measured = {
        "in_batch_ms": 1e3 * costs.in_batch,
        "any_uniform_us": 1e6 * costs.any_uniform,
        "uniform_column_us": 1e6 * costs.per_uniform,
        "any_cached_us": 1e6 * costs.any_cached,
        "cached_column_us": 1e6 * costs.per_cached,
        "num_items": facts.num_items,
        "equally_likely_items": 1 / facts.collision,
        "later_share": facts.later,
        "masking_us": 1e6 * costs.masking,
        "budget": budget,
    }
    reason = (
        f"an in-batch step takes {measured['in_batch_ms']:.3g} ms here, uniform items "
        f"{measured['any_uniform_us']:.3g} µs and {measured['uniform_column_us']:.3g} µs each, "
        f"cached ones {measured['any_cached_us']:.3g} and {measured['cached_column_us']:.3g} µs; "
        f"within {budget:g} times the step {choice}"
    )
    if masks:
        reason += f"; users like {facts.later:.1%} of a batch's items later: no negatives of theirs"
    return Advice(sampler, reason, measured, {"mask_later": True} if masks else {})


def _affordable(
    uniform: Mapping[int, float], cached: float, facts: Facts
) -> tuple[dict[str, Any], str]:
    """What to buy with time for so many uniform (by turn) or so many cached columns, and why."""
    B, num_items = facts.batch_size, facts.num_items
    if num_items <= uniform[1]:
        choice = f"all {num_items:,} items fit, which is the full softmax"
        return {"name": "uniform", "num_negatives": num_items}, choice
    turn = next((turn for turn, count in uniform.items() if count >= B), None)
    if turn and (not facts.normalized or facts.interests > 1):
        beside = "several interests a user" if facts.normalized else "dot products"
        choice = f"uniform items fit, but beside {beside} they did harm where we measured"
        return {"name": "in_batch"}, choice
    if turn:
        count = min(_rounded(uniform[turn], B, MOST_UNIFORM * B), num_items)
        often = "" if turn == 1 else f" every {turn} steps"
        choice = f"{count} uniform items beside the batch{often} fit; all {num_items:,} would not"
        sampler = {"name": "mixed", "num_uniform": count}
        return sampler | ({} if turn == 1 else {"every": turn}), choice
    if cached >= B:
        capacity = _rounded(cached, B, MOST_CACHED * B)
        choice = f"encoding items is too dear, {capacity} cached vectors fit"
        return {"name": "cross_batch", "capacity": capacity} | SAFE_BANK, choice
    return {"name": "in_batch"}, "nothing more fits than the batch's own items"


def later_share(recipe: Recipe, dataset: Dataset) -> float:
    """The share of a batch's positives that come later in the sequence of a row's user."""
    batches = dataset.batches(recipe.train.batch_size, seed=recipe.train.seed, later=True)
    shares = []
    for batch in islice(batches, LATER_BATCHES):
        ids, offsets = cast("tuple[Tensor, Tensor]", batch.later)
        shares.append(float(known_positives_mask(ids, batch.item_ids, offsets).float().mean()))
    return fmean(shares)


def _interests(trainer: Trainer, recipe: Recipe, dataset: Dataset) -> int:
    batch = next(dataset.batches(1, seed=0, history_length=recipe.train.history_length))
    batch = batch.to(trainer.log_temperature.device)
    with torch.no_grad():
        return len(cast("TwoTower", trainer.model).users(batch.history, batch.user_ids)[0])


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


def _rounded(count: float, unit: float, most: float) -> int:
    """The largest of unit, 2 unit, 4 unit … that fits: timing noise seldom changes it."""
    size = unit
    while 2 * size <= min(count, most):
        size *= 2
    return int(size)
