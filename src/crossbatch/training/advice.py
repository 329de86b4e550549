"""`advise`: which negatives suit a dataset and its towers, measured before training begins.

    advice = advise(recipe, dataset)
    advice.sampler        # {"name": "mixed", "num_uniform": 256, "every": 4}
    advice.reason         # one plain statement of what was measured and what follows

The rule spends a fixed share of an in-batch step's time (`budget`) on further negatives, and spends
it where our measurements say that it buys most (docs/negatives.md): on every item of the catalogue
if they fit; else, for one normalised vector a user, on uniform items with gradient (with dot
products or several interests they mostly did harm), every so many steps where having any at all is
what costs; and on cached vectors only where encoding an item is too dear for that. Before any of
that, where users like many of the batch's items, what a user came to like later is taken out of its
negatives.
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.negatives import known_positives_mask
from crossbatch.training.assemble import AUTO, build_trainer
from crossbatch.training.step_costs import Costs, measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset
    from crossbatch.models import TwoTower
    from crossbatch.training.step import Trainer

MARGIN = 0.7  # of the allowance that is spent: a long run costs more than a short look says
TURNS = (1, 2, 4)  # steps from one draw of uniform items to the next
MOST_UNIFORM, MOST_CACHED = 8, 16  # in batches: about the paper's 1152 and 2432 at B = 128
LATER_SHARE = 0.001  # of a batch's columns that the row's user likes later; fewer change nothing
LATER_BATCHES = 16  # that it is counted in
# A bank that needs no study: unbiased, no warm-up to choose, switched off where it does harm.
SAFE_BANK = {
    "item_gradient": "balanced",
    "warmup_steps": 0,
    "max_staleness": 0.1,
    "max_repeats": 1.0,
    "guard": True,
}


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
    masks = facts.later >= LATER_SHARE  # worth more than anything else that time can buy
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
    if turn and (why := _against_uniform(facts)):
        return {"name": "in_batch"}, f"uniform items fit, but {why}"
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


def _against_uniform(facts: Facts) -> str:
    """Why uniform items are left out though they fit; nothing where they are not."""
    if facts.interests > 1:
        return "beside several interests a user they did harm on most sets we measured"
    if not facts.normalized:
        return "beside dot products they did harm on most sets we measured"
    if facts.later >= LATER_SHARE:
        return "where users like so much of what there is they brought nothing"
    return ""


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


def _rounded(count: float, unit: float, most: float) -> int:
    """The largest of unit, 2 unit, 4 unit … that fits: timing noise seldom changes it."""
    size = unit
    while 2 * size <= min(count, most):
        size *= 2
    return int(size)
