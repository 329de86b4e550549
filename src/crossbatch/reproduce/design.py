"""Which runs an experiment consists of: models × strategies × seeds, all else equal.

    design = Design(base, one_pass=2327, seeds=(0, 1, 2))
    [cell.folder for cell in design.table1()]      # "runs/youtube_dnn-uniform-s0", …

Experiments share runs: Table 2 at M = 0 and M = 19 B are Table 1's in-batch and cross-batch runs,
and both have the same folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from crossbatch.config import Recipe

MODELS = ("youtube_dnn", "gru4rec", "mind")

# Bank size by measured drift, rules fixed before any of their runs: no warm-up, and the same limits
# for every model and every data set. "drift_limited" has the largest bank of Table 2, "safe_bank"
# one of 16 batches. "sized_bank", which came after those had missed on MovieLens, also leaves out
# what the bank would only repeat.
DRIFT_RULE = {"item_gradient": "balanced", "warmup_steps": 0, "max_staleness": 0.1}
NO_REPEATS = {"max_repeats": 1.0, "guard": True}

# Sampler options by batch size B: at the paper's B = 128 they are the paper's numbers, 1280 uniform
# negatives, 1152 for MNS and M = 2432. "balanced" is CBNS with the repaired item gradient.
STRATEGIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "uniform": lambda B: {"name": "uniform", "num_negatives": 10 * B},
    "in_batch": lambda _: {"name": "in_batch"},
    "mixed": lambda B: {"name": "mixed", "num_uniform": 9 * B},
    "cross_batch": lambda B: {"name": "cross_batch", "capacity": 19 * B},
    "balanced": lambda B: {"name": "cross_batch", "capacity": 19 * B},
    "auto": lambda _: {"name": "auto"},
    "full": lambda _: {"name": "uniform"},
    "drift_limited": lambda B: {"name": "cross_batch", "capacity": 79 * B} | DRIFT_RULE,
    "safe_bank": lambda B: {"name": "cross_batch", "capacity": 16 * B, "guard": True} | DRIFT_RULE,
    "sized_bank": lambda B: {"name": "cross_batch", "capacity": 79 * B} | DRIFT_RULE | NO_REPEATS,
    "spared": lambda _: {"name": "in_batch"},
}
USUAL = ("uniform", "in_batch", "mixed", "cross_batch", "balanced")  # unless others are asked for
ITEM_GRADIENTS = {"cross_batch": "paper", "balanced": "balanced"}
DRIFT_RULES = ("drift_limited", "safe_bank", "sized_bank")
# What a strategy changes besides the sampler. "spared" is in-batch where no user's later items are
# negatives of theirs.
CHANGES = {"spared": ("loss.mask_later=true",)}
# A search does not try these: they take what it chose for their nearest relative.
RELATIVES = {
    "auto": "in_batch",
    "full": "uniform",
    "drift_limited": "balanced",
    "safe_bank": "balanced",
    "sized_bank": "balanced",
    "spared": "in_batch",
}

SIZES = (0, 1, 4, 9, 19, 39, 79)  # Table 2, in batches: M = 0, 128, 512, … 10112 at B = 128

SHORT_EVALS = 10  # a shortened run is still evaluated this often
SHORT_WARMUP = 0.25  # and uses its bank for at least the rest


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a grid.

    Attributes:
        folder: Run folder, relative to the grid's.
        recipe: What to train.
        probe: Whether drift and gradient errors are measured on the way.
        test: Whether the test users are looked at.
    """

    folder: str
    recipe: Recipe
    probe: bool = False
    test: bool = True

    def is_finished(self, out: Path) -> bool:
        """Whether the run has its result in the grid's folder `out`."""
        return (out / self.folder / "result.json").is_file()


@dataclass(frozen=True, slots=True)
class Design:
    """What all runs of a grid share, and what they vary.

    Attributes:
        base: Recipe of everything that is neither model, strategy nor seed.
        one_pass: Steps that read each training sample once: the warm-up unless `base` says it.
        models: Keys of `crossbatch.models.MODELS`.
        strategies: Keys of `STRATEGIES`.
        seeds: One run each.
        settings: Overrides `section.key=value` by model and strategy, as `search` chose them.
        num_items: Columns of the full softmax.
        budget: Steps of a shortened run, or None for runs until they converge.
    """

    base: Recipe
    one_pass: int
    models: Sequence[str] = MODELS
    strategies: Sequence[str] = USUAL
    seeds: Sequence[int] = (0,)
    settings: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    budget: int | None = None
    num_items: int = 0

    def table1(self) -> list[Cell]:
        """Every model with every strategy; a whole table for the first seed comes first."""
        return [
            self.cell(model, strategy, seed)
            for seed in self.seeds
            for model in self.models
            for strategy in self.strategies
        ]

    def table2(self, sizes: Sequence[int] = SIZES) -> list[Cell]:
        """Every model with every banked strategy at every size, in multiples of the batch."""
        banked = [strategy for strategy in self.strategies if strategy in ITEM_GRADIENTS]
        return distinct(
            self.cell(model, strategy, seed, size)
            for seed in self.seeds
            for model in self.models
            for strategy in banked
            for size in sizes
        )

    def probes(self) -> list[Cell]:
        """Runs that measure drift and the lemma: in-batch as in the paper, and the banked ones."""
        wanted = [s for s in self.strategies if s == "in_batch" or s in ITEM_GRADIENTS]
        cells = [self.cell(m, s, self.seeds[0]) for m in self.models for s in wanted]
        return [
            replace(cell, folder=cell.folder.replace("runs/", "probes/"), probe=True, test=False)
            for cell in cells
        ]

    def cell(self, model: str, strategy: str, seed: int, size: int | None = None) -> Cell:
        """The run of one model, strategy and seed; `size` is the bank's, in batches."""
        if size == 0:
            strategy, size = "in_batch", None  # the same to the bit
        own = [] if model == self.base.model.name else ["model.tower={}"]  # another tower's options
        recipe = self.base.changed([f"model.name={model}", f"train.seed={seed}", *own])
        recipe = replace(recipe, sampler=self._sampler(recipe, strategy, size))
        recipe = recipe.changed((*self._settings(model, strategy), *CHANGES.get(strategy, ())))
        if self.budget:
            recipe = shortened(recipe, self.budget, self.one_pass)
        usual = self._sampler(recipe, strategy, None).get("capacity")
        capacity = recipe.sampler.get("capacity")
        bank = "" if capacity == usual else f"-M{capacity}"
        return Cell(f"runs/{model}-{strategy}{bank}-s{seed}", recipe)

    def _settings(self, model: str, strategy: str) -> Sequence[str]:
        chosen = self.settings.get(model, {})
        return chosen.get(strategy, chosen.get(RELATIVES.get(strategy, ""), ()))

    def _sampler(self, recipe: Recipe, strategy: str, size: int | None) -> dict[str, Any]:
        """Options of a strategy; the base recipe's own win where it has the same sampler."""
        B = recipe.train.batch_size
        options = STRATEGIES[strategy](B)
        if self.base.sampler["name"] == options["name"] and strategy not in DRIFT_RULES:
            options |= self.base.sampler
        if strategy in ITEM_GRADIENTS:
            options["item_gradient"] = ITEM_GRADIENTS[strategy]
        if strategy == "full":
            options = {"name": "uniform", "num_negatives": self.num_items}
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


def distinct(cells: Iterable[Cell]) -> list[Cell]:
    """Cells without those whose folder came before."""
    kept: dict[str, Cell] = {}
    for cell in cells:
        kept.setdefault(cell.folder, cell)
    return list(kept.values())
