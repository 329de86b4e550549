"""`sampler = "auto"`: which negatives suit a dataset and its towers, measured before training.

    choice = choose_sampler(recipe, dataset)
    choice.sampler        # {"name": "mixed", "num_uniform": 256, "every": 4}
    choice.reason         # what was measured and what follows from it

The rule spends a fixed share of an in-batch step's time (`budget`) on further negatives, and spends
it where our measurements say that it gains most (docs/negatives.md): on every item of the catalogue
if they fit; else, for one normalised vector per user, on uniform items with gradient (with dot
products or several interests they mostly did harm), every few steps where most of their cost does
not depend on their number. Where batches are small and items are rows of a table, it takes a bank
with deferred gradients before all of these if the budget allows it, as it does where the user tower
is expensive; for items that share weights no bank gained (docs/concepts/when-a-bank-pays.md). Where
users like many of the batch's items, items that a user liked later are first removed from its
negatives.
"""

from __future__ import annotations

import copy
import math
import time
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.models import ItemTower, TwoTower
from crossbatch.negatives import Candidates, CrossBatchSampler, Queries, known_positives_mask
from crossbatch.queries import feature_rows
from crossbatch.training.build import AUTO, build_sampler, build_trainer, draw_batches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.training.step import Trainer, TrainingBatch

MARGIN = 0.7  # share of the allowance that is spent: a long run costs more than a short timing
INTERVALS = (1, 2, 4)  # steps from one draw of uniform items to the next
MOST_UNIFORM = 8  # in batches: about the paper's 1152 at B = 128
LATER_SHARE = 0.001  # of a batch's columns that the row's user likes later; fewer change nothing
LATER_BATCHES = 16  # in which the share is counted
# Where a bank pays (benchmarks/bank_rule.py): batches of at most so many rows, and at least as many
# equally likely items as the bank has rows.
BANK_BATCH, BANK_ROWS = 64, 2432
BANK_WARM_UP = 0.1  # of the steps
# Timing.
ROUNDS = 15  # the samplers are timed in turn, so that a busy machine slows all of them
WARM_UP, FEWEST_ROUNDS = 3, 6  # first rounds, not counted; rounds in any case
ENOUGH = 2.0  # seconds of steps after which the fewest rounds will do
BLOCK = 4  # steps in a row; the first, with caches as the others left them, is not counted
DRAWN = 64  # batches drawn to time drawing: they are made in blocks
LEAST = 1e-9  # seconds of a column: noise may make a difference of timings negative
# Uniform items added for timing, in batches: few for the fixed cost, many for the cost of each.
PROBES = (0.25, 4)


@dataclass(frozen=True, slots=True)
class SamplerChoice:
    """A sampler, and why it was chosen.

    Attributes:
        sampler: The `[sampler]` section to use.
        reason: What was measured and what follows from it, in a sentence or two.
        facts: The measurements.
        loss: Changes of the `[loss]` section.
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


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known without measuring."""

    batch_size: int
    num_items: int
    collision: float  # Σq², the probability that two positives are the same item
    normalized: bool  # whether vectors have length 1
    later: float = 0.0  # share of a batch's columns that the row's user likes later
    interests: int = 1  # vectors of a user
    table: bool = False  # whether an item is a row of a table and shares no weights with others
    steps: int = 0  # of the training
    alone: bool = True  # whether one process trains


def choose_sampler(
    recipe: Recipe,
    dataset: Dataset,
    model: torch.nn.Module | None = None,
    *,
    alone: bool = True,
) -> SamplerChoice:
    """Measure the towers, the caller's `model` or those of the recipe, and choose.

    Deferred gradients are for a process that trains `alone`.
    """
    budget = recipe.sampler.get("budget", AUTO["budget"])
    plain = replace(recipe, sampler={"name": "in_batch"})
    trainer = build_trainer(plain, dataset, copy.deepcopy(model))
    train = recipe.train
    q = dataset.sampling_law(train.min_history, train.sample_by, train.newest_days)
    facts = Facts(
        recipe.train.batch_size,
        dataset.num_items,
        float(q @ q),
        recipe.model.normalize,
        later_share(recipe, dataset),
        _interests(trainer, recipe, dataset),
        is_table(trainer.model),
        train.max_steps,
        alone,
    )
    return decide(measure_costs(trainer, recipe, dataset, bank_pays(facts)), facts, budget)


def decide(costs: Costs, facts: Facts, budget: float) -> SamplerChoice:
    """The rule, from the measurements alone; `budget` is in in-batch steps."""
    spare = MARGIN * (budget - 1) * costs.in_batch
    masks = facts.later >= LATER_SHARE  # gains more than further negatives in the same time
    spare -= costs.masking if masks else 0.0
    most = costs.in_batch + spare
    uniform = {n: (n * spare - costs.any_uniform) / costs.per_uniform for n in INTERVALS}
    sampler, choice = _affordable(uniform, facts)
    if bank_pays(facts) and sampler["name"] != "uniform" and costs.deferred <= most:
        sampler, choice = _deferred_bank(costs, facts)
    measured = {
        "in_batch_ms": 1e3 * costs.in_batch,
        "any_uniform_us": 1e6 * costs.any_uniform,
        "uniform_column_us": 1e6 * costs.per_uniform,
        "num_items": facts.num_items,
        "equally_likely_items": 1 / facts.collision,
        "later_share": facts.later,
        "masking_us": 1e6 * costs.masking,
        "budget": budget,
    }
    if bank_pays(facts):
        measured["deferred_ms"] = 1e3 * costs.deferred
    reason = (
        f"an in-batch step takes {measured['in_batch_ms']:.3g} ms here, uniform items "
        f"{measured['any_uniform_us']:.3g} µs and {measured['uniform_column_us']:.3g} µs each; "
        f"within {budget:g} times the step {choice}"
    )
    if masks:
        reason += f"; users like {facts.later:.1%} of a batch's items later: no negatives of theirs"
    return SamplerChoice(sampler, reason, measured, {"mask_later": True} if masks else {})


def _affordable(uniform: Mapping[int, float], facts: Facts) -> tuple[dict[str, Any], str]:
    """The sampler for so many uniform columns, by interval, and the reason in words."""
    B, num_items = facts.batch_size, facts.num_items
    if num_items <= uniform[1]:
        choice = f"all {num_items:,} items fit, which is the full softmax"
        return {"name": "uniform", "num_negatives": num_items}, choice
    interval = next((n for n, count in uniform.items() if count >= B), None)
    if interval and (why := _against_uniform(facts)):
        return {"name": "in_batch"}, f"uniform items fit, but {why}"
    if interval:
        count = min(_rounded(uniform[interval], B, MOST_UNIFORM * B), num_items)
        often = "" if interval == 1 else f" every {interval} steps"
        choice = f"{count} uniform items beside the batch{often} fit; all {num_items:,} would not"
        sampler = {"name": "mixed", "num_uniform": count}
        return sampler | ({} if interval == 1 else {"every": interval}), choice
    return {"name": "in_batch"}, "nothing more fits than the batch's own items"


def bank_pays(facts: Facts) -> bool:
    """Whether our map of batch sizes, towers and catalogues says that a bank gains."""
    small = facts.batch_size <= BANK_BATCH and 1 / facts.collision >= BANK_ROWS
    return small and facts.table and facts.normalized and facts.interests == 1 and facts.alone


def _deferred_bank(costs: Costs, facts: Facts) -> tuple[dict[str, Any], str]:
    times = costs.deferred / costs.in_batch
    choice = (
        f"{BANK_ROWS} cached vectors with deferred gradients fit, at {times:.3g} times the step: "
        f"batches of {facts.batch_size} and {1 / facts.collision:,.0f} equally likely items gain "
        "from them"
    )
    options = {"capacity": BANK_ROWS, "item_gradient": "deferred"}
    warm_up = {"warmup_steps": int(BANK_WARM_UP * facts.steps)}
    return {"name": "cross_batch"} | options | warm_up, choice


def is_table(model: object) -> bool:
    """Whether a model's item tower is nothing but a row for each item."""
    tower = getattr(model, "item_tower", None)
    return isinstance(tower, ItemTower) and tower.layers is None


def _against_uniform(facts: Facts) -> str:
    """Why uniform items are not used although they fit; empty where they are."""
    if facts.interests > 1:
        return "beside several interests per user they did harm on most sets we measured"
    if not facts.normalized:
        return "beside dot products they did harm on most sets we measured"
    if facts.later >= LATER_SHARE:
        return "where users like so much of what there is they gained nothing"
    return ""


def later_share(recipe: Recipe, dataset: Dataset) -> float:
    """The share of a batch's positives that come later in the sequence of a row's user."""
    batches = draw_batches(recipe.train, dataset, later=True)
    shares = []
    for batch in islice(batches, LATER_BATCHES):
        ids, offsets = cast("tuple[Tensor, Tensor]", batch.later)
        shares.append(float(known_positives_mask(ids, batch.item_ids, offsets).float().mean()))
    return fmean(shares)


def _interests(trainer: Trainer, recipe: Recipe, dataset: Dataset) -> int:
    batch = next(draw_batches(recipe.train, dataset, batch_size=1, seed=0))
    batch = batch.to(trainer.log_temperature.device)
    with torch.no_grad():
        model = cast("TwoTower", trainer.model)
        interests = model.users(batch.history, *feature_rows(model, batch))
        # Queries that score together are trained together: no item waits for the best of them.
        return 1 if isinstance(interests, Queries) else interests.shape[1]


def _rounded(count: float, unit: float, most: float) -> int:
    """The largest of unit, 2 unit, 4 unit … that fits: timing noise seldom changes it."""
    size = unit
    while 2 * size <= min(count, most):
        size *= 2
    return int(size)


# --- timing ---


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of an in-batch step and of what may be added to it."""

    in_batch: float
    per_uniform: float  # a column that is encoded, with gradient
    any_uniform: float = 0.0  # fixed cost of having any
    masking: float = 0.0  # of later items
    deferred: float = math.inf  # a whole step with a bank and deferred gradients


def measure_costs(trainer: Trainer, recipe: Recipe, dataset: Dataset, bank: bool = False) -> Costs:
    """Time in-batch steps, uniform columns, and a deferred `bank` if it is asked for.

    The trainer's towers are trained by that.
    """
    B = recipe.train.batch_size
    device = trainer.log_temperature.device
    samplers = {
        name: build_sampler(replace(recipe, sampler=options), dataset).to(device)
        for name, options in _probes(B, dataset.num_items, bank).items()
    }
    batches = draw_batches(recipe.train, dataset, later=True)
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    for number in range(ROUNDS):
        block = [next(batches).to(device) for _ in range(BLOCK)]
        for name, trainer.sampler in samplers.items():
            if number == 0 and isinstance(trainer.sampler, CrossBatchSampler):
                _fill(trainer.sampler, block[0].item_ids)
            trainer.mask_later = name == "masked"
            taken[name].append(fmean([_step_seconds(trainer, batch) for batch in block][1:]))
        # The first steps of all compile.
        if number + 1 >= FEWEST_ROUNDS and BLOCK * sum(map(_after_first, taken.values())) > ENOUGH:
            break
    seconds = {name: min(steps[WARM_UP:]) for name, steps in taken.items()}
    base = seconds["in_batch"]
    few, many = (min(max(1, int(share * B)), dataset.num_items) for share in PROBES)
    any_uniform, per_uniform = _line(base, (few, seconds["few"]), (many, seconds["uniform"]))
    drawing = _drawing_seconds(recipe, dataset, True) - _drawing_seconds(recipe, dataset, False)
    masking = max(seconds["masked"] - base + drawing, 0.0)
    deferred = seconds.get("deferred", math.inf)
    return Costs(base, per_uniform, any_uniform, masking, deferred)


def _after_first(seconds: list[float]) -> float:
    return sum(seconds[1:])


def _line(base: float, few: tuple[int, float], many: tuple[int, float]) -> tuple[float, float]:
    """Fixed cost beyond `base` and cost of each column: the line through two points."""
    if many[0] <= few[0]:  # a catalogue smaller than the probes
        return 0.0, max((many[1] - base) / many[0], LEAST)
    each = max((many[1] - few[1]) / (many[0] - few[0]), LEAST)
    return max(few[1] - base - each * few[0], 0.0), each


def _step_seconds(trainer: Trainer, batch: TrainingBatch) -> float:
    if batch.item_ids.is_cuda:
        torch.cuda.synchronize()
    # On a CPU the process's own time: wall time depends on what else is running.
    clock = time.perf_counter if batch.item_ids.is_cuda else time.process_time
    start = clock()
    trainer.train_step(batch)
    if batch.item_ids.is_cuda:
        torch.cuda.synchronize()
    return clock() - start


def _drawing_seconds(recipe: Recipe, dataset: Dataset, later: bool) -> float:
    """Time to draw a batch, with or without the items that come later."""
    taken = []
    batches = draw_batches(recipe.train, dataset, later=later)
    for _ in range(WARM_UP):
        start = time.process_time()
        deque(islice(batches, DRAWN), maxlen=0)
        taken.append((time.process_time() - start) / DRAWN)
    return min(taken)


def _fill(sampler: CrossBatchSampler, item_ids: Tensor) -> None:
    vectors = torch.randn(len(item_ids), sampler.dim, device=item_ids.device)
    for _ in range(-(-sampler.bank.capacity // len(item_ids))):
        sampler.observe(Candidates(vectors, item_ids, sampler.log_q(item_ids)))


def _probes(B: int, num_items: int, bank: bool) -> Mapping[str, dict[str, Any]]:
    few, many = (min(max(1, int(share * B)), num_items) for share in PROBES)
    probes: dict[str, dict[str, Any]] = {
        "in_batch": {"name": "in_batch"},
        "masked": {"name": "in_batch"},
        "few": {"name": "mixed", "num_uniform": few},
        "uniform": {"name": "mixed", "num_uniform": many},
    }
    if bank:
        options = {"capacity": BANK_ROWS, "item_gradient": "deferred", "warmup_steps": 0}
        probes["deferred"] = {"name": "cross_batch", **options}
    return probes
