"""Which runs an experiment consists of: models × strategies × seeds, all else equal.

    design = Design(base, one_pass=2327, seeds=(0, 1, 2))
    [run.folder for run in design.table1()]      # "runs/youtube_dnn-uniform-s0", …

Experiments share runs: Table 2 at M = 0 and M = 19 B are Table 1's in-batch and cross-batch runs,
and both have the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crossbatch.reports.variants import position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from crossbatch.config import Recipe

MODELS = ("youtube_dnn", "gru4rec", "mind")
# A recipe that lets a race choose the tower names none: a model has what the race would give it.
STRONG_TOWERS = {"youtube_dnn": '{pooling="recency"}'}


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to draw negatives, as a column of the grid."""

    title: str  # its name in print
    sampler: Callable[[int, int], dict[str, Any]]  # its options by batch size and number of items
    banked: bool = False  # whether Table 2 varies its bank
    overrides: tuple[str, ...] = ()  # what it changes besides the sampler: `section.key=value`
    settings_of: str = ""  # whose searched settings it takes; a search does not try it then
    fixed: bool = False  # whether it ignores the options of a base recipe with the same sampler
    in_table1: bool = True  # whether Table 1 and the curves show it


def _bank(item_gradient: str) -> Callable[[int, int], dict[str, Any]]:
    options = {"name": "cross_batch", "item_gradient": item_gradient}
    return lambda B, _: {**options, "capacity": 19 * B}


# At the paper's B = 128 these are the paper's numbers: 1280 uniform negatives, 1152 for MNS, and
# M = 2432. "balanced" and "deferred" are CBNS with a repaired item gradient, "full" the full
# softmax, "spared" in-batch sampling where no user's later items are negatives of theirs.
STRATEGIES: dict[str, Strategy] = {
    "uniform": Strategy("Uniform", lambda B, _: {"name": "uniform", "num_negatives": 10 * B}),
    "in_batch": Strategy("In-batch", lambda *_: {"name": "in_batch"}),
    "mixed": Strategy("Mixed (MNS)", lambda B, _: {"name": "mixed", "num_uniform": 9 * B}),
    "cross_batch": Strategy("Cross-batch, as published", _bank("paper"), banked=True),
    "balanced": Strategy("Cross-batch, balanced", _bank("balanced"), banked=True),
    "auto": Strategy("Auto", lambda *_: {"name": "auto"}, settings_of="in_batch"),
    "full": Strategy(
        "Full softmax",
        lambda _, num_items: {"name": "uniform", "num_negatives": num_items},
        settings_of="uniform",
        fixed=True,
        in_table1=False,
    ),
    "spared": Strategy(
        "In-batch, later items spared",
        lambda *_: {"name": "in_batch"},
        overrides=("loss.mask_later=true",),
        settings_of="in_batch",
    ),
    "deferred": Strategy(
        "Cross-batch, deferred", _bank("deferred"), banked=True, settings_of="balanced"
    ),
}
DEFAULT_STRATEGIES = ("uniform", "in_batch", "mixed", "cross_batch", "balanced")

SIZES = (0, 1, 4, 9, 19, 39, 79)  # Table 2, in batches: M = 0, 128, 512, … 10112 at B = 128

SHORT_EVALS = 10  # a shortened run is still evaluated this often
SHORT_WARMUP = 0.25  # and uses its bank for at least the rest


def strategy_title(strategy: str) -> str:
    """The strategy's name in print."""
    known = STRATEGIES.get(strategy)
    return known.title if known else strategy


def strategy_color(strategy: str) -> int:
    """The colour number of a strategy, the same in every figure."""
    return position(strategy, STRATEGIES)


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One run of a grid."""

    folder: str  # run folder, relative to the grid's
    recipe: Recipe
    probe: bool = False  # whether drift and gradient errors are measured during training
    test: bool = True  # whether the test users are evaluated

    def is_finished(self, out: Path) -> bool:
        """Whether the run has its result in the grid's folder `out`."""
        return (out / self.folder / "result.json").is_file()


@dataclass(frozen=True, slots=True)
class Design:
    """What all runs of a grid share, and what they vary."""

    base: Recipe  # everything that is neither model, strategy nor seed
    one_pass: int  # steps that read each sample once: the warm-up unless `base` says it
    models: Sequence[str] = MODELS  # keys of `crossbatch.models.MODELS`
    strategies: Sequence[str] = DEFAULT_STRATEGIES  # keys of `STRATEGIES`
    seeds: Sequence[int] = (0,)  # one run each
    # Overrides `section.key=value` by model and strategy, as a search chose them.
    settings: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    budget: int | None = None  # steps of a shortened run; None: until convergence
    num_items: int = 0  # columns of the full softmax
    sizes: Sequence[int] = SIZES  # of Table 2's banks, in batches
    among: Sequence[str] = ()  # settings that a search tries; empty for all

    def table1(self) -> list[PlannedRun]:
        """Every model with every strategy; a whole table for the first seed comes first."""
        return [
            self.run(model, strategy, seed)
            for seed in self.seeds
            for model in self.models
            for strategy in self.strategies
        ]

    def table2(self) -> list[PlannedRun]:
        """Every model with every banked strategy at every size."""
        return distinct(
            self.run(model, strategy, seed, size)
            for seed in self.seeds
            for model in self.models
            for strategy in self.strategies
            if STRATEGIES[strategy].banked
            for size in self.sizes
        )

    def probes(self) -> list[PlannedRun]:
        """Runs that measure drift and the lemma: in-batch as in the paper, and the banked ones."""
        wanted = [s for s in self.strategies if s == "in_batch" or STRATEGIES[s].banked]
        runs = [self.run(m, s, self.seeds[0]) for m in self.models for s in wanted]
        return [
            replace(run, folder=run.folder.replace("runs/", "probes/"), probe=True, test=False)
            for run in runs
        ]

    def run(self, model: str, strategy: str, seed: int, size: int | None = None) -> PlannedRun:
        """The run of one model, strategy and seed; `size` is the bank's, in batches."""
        if size == 0:
            strategy, size = "in_batch", None  # the same to the bit
        named = [f"model.name={model}", f"train.seed={seed}", *self._tower(model)]
        recipe = self.base.changed(named)
        recipe = replace(recipe, sampler=self._sampler(recipe, strategy, size))
        known = STRATEGIES[strategy]
        chosen = self.settings.get(model, {})
        settings = chosen.get(strategy, chosen.get(known.settings_of, ()))
        recipe = recipe.changed((*settings, *known.overrides))
        if self.budget:
            recipe = shortened(recipe, self.budget, self.one_pass)
        usual = self._sampler(recipe, strategy, None).get("capacity")
        capacity = recipe.sampler.get("capacity")
        bank = "" if capacity == usual else f"-M{capacity}"
        return PlannedRun(f"runs/{model}-{strategy}{bank}-s{seed}", recipe)

    def _tower(self, model: str) -> list[str]:
        """Options of the user tower: the base recipe's own ones are for its own model."""
        base = self.base.model.name
        if model == base:
            return []
        return [f"model.tower={STRONG_TOWERS.get(model, '{}') if base == 'auto' else '{}'}"]

    def _sampler(self, recipe: Recipe, strategy: str, size: int | None) -> dict[str, Any]:
        """Options of a strategy; the base recipe's own win where it has the same sampler."""
        B, known = recipe.train.batch_size, STRATEGIES[strategy]
        options = known.sampler(B, self.num_items)
        if self.base.sampler["name"] == options["name"] and not known.fixed:
            gradient = {k: v for k, v in options.items() if k == "item_gradient"}
            options |= {**self.base.sampler, **gradient}
        if size is not None:
            options["capacity"] = size * B
        return options


def shortened(recipe: Recipe, steps: int, one_pass: int) -> Recipe:
    """The recipe cut to `steps`, evaluated often enough, its warm-up cut in proportion."""
    every = min(recipe.train.eval_every, max(1, steps // SHORT_EVALS))
    changes = [f"train.max_steps={steps}", f"train.eval_every={every}"]
    if recipe.sampler["name"] == "cross_batch":
        warmup = recipe.sampler.get("warmup_steps", one_pass)
        changes.append(f"sampler.warmup_steps={min(warmup, int(SHORT_WARMUP * steps))}")
    return recipe.changed(changes)


def distinct(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Runs without those whose folder came before."""
    kept: dict[str, PlannedRun] = {}
    for run in runs:
        kept.setdefault(run.folder, run)
    return list(kept.values())
