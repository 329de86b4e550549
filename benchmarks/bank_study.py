"""Quality of several rules to learn from a bank, trained with the same settings.

    python benchmarks/bank_study.py DATASET --recipe amazon-book-1m --seeds 0,1,2

All rules of `variants.py`, and a bank that is encoded anew at every step, have the same towers,
batches, learning rate and number of steps; the bank is read after a quarter of the steps. The model
with the best validation recall@50 is evaluated on the test users, over the whole catalogue.
Finished runs are read from `--out` instead of being trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.negatives import Candidates, InBatchSampler, MemoryBank
from crossbatch.training.build import build_sampler, build_trainer, draw_batches
from variants import RULES as OF_CACHED_COLUMNS
from variants import Step, balanced

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.batches import Batch
    from crossbatch.training.step import Trainer

METRICS = ("recall@50", "ndcg@50")
# The best that re-encoding some rows or a momentum encoder could do: a bank without staleness.
RULES = OF_CACHED_COLUMNS | {"fresh bank": balanced}


class Learner:
    """A trainer, its banks and one rule."""

    def __init__(self, rule: str, recipe: Recipe, dataset: Dataset, capacity: int) -> None:
        self.rule, self.recipe = rule, recipe
        self.trainer: Trainer = build_trainer(recipe, dataset)
        sampler = build_sampler(recipe, dataset)
        assert isinstance(sampler, InBatchSampler)
        self.sampler = sampler
        dim = recipe.model.dim
        self.items, self.users = MemoryBank(capacity, dim), MemoryBank(capacity, dim)

    def learn(self, batch: Batch, use_bank: bool) -> None:
        """One step by the rule, or by plain in-batch sampling before the bank is used."""
        u, v = self.trainer.model(batch.history, batch.item_ids, batch.user_ids)
        positives = Candidates(v, batch.item_ids, self.sampler.log_q(batch.item_ids))
        temperature = self.recipe.loss.temperature
        step = Step(u, positives, self._cached(), self.users.read(), temperature)
        RULES[self.rule if use_bank else "in-batch"](step).backward()  # type: ignore[no-untyped-call]
        self.trainer.optimizer.step()
        if self.rule == "two banks":
            ids, log_z = batch.item_ids, step.log_partition()
            self.users.enqueue(Candidates(u.detach(), ids, log_z))
        self.items.enqueue(positives)

    def _cached(self) -> Candidates:
        """The rows of the bank, cached or encoded anew."""
        items = self.items.read()
        if self.rule != "fresh bank" or len(items) == 0:
            return items
        with torch.no_grad():
            fresh = self.trainer.model.items(items.item_ids)
        return Candidates(fresh, items.item_ids, items.log_q, cached=True)


def run(rule: str, recipe: Recipe, dataset: Dataset, steps: int, capacity: int) -> dict[str, float]:
    """Train and measure one rule."""
    learner = Learner(rule, recipe, dataset, capacity)
    model = learner.trainer.model
    batches, evaluator = draw_batches(recipe.train, dataset), RunEvaluator(dataset, recipe)
    best, value, state, began = -1.0, -1.0, {}, time.process_time()
    for step in range(1, steps + 1):
        learner.learn(next(batches), use_bank=step > steps // 4)
        if step % (steps // 12) == 0:
            learner.trainer.optimizer.flush()
            value = evaluator.evaluate(model, "valid").means()["recall@50"]
            if value > best:
                best, state = value, _copy(model)
    model.load_state_dict(state)  # type: ignore[attr-defined]
    test = evaluator.evaluate(model, "test").means()
    return {
        "valid recall@50": best,
        "valid recall@50 at the end": value,
        "cpu_seconds": time.process_time() - began,
        **{f"test {metric}": test[metric] for metric in METRICS},
    }


def _copy(model: object) -> dict[str, Tensor]:
    assert isinstance(model, torch.nn.Module)
    return {name: value.clone() for name, value in model.state_dict().items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--steps", type=int, default=4800)
    parser.add_argument("--bank", type=int, default=2432)
    parser.add_argument("--out", type=Path, default=Path("bank_study.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = open_dataset(arguments.dataset)
    base = Recipe.load(arguments.recipe, [*arguments.set, 'sampler={name="in_batch"}'])
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    rules = arguments.rules.split(",")
    for seed in arguments.seeds.split(","):
        for rule in rules:
            key = f"{dataset.path.name} {base.model.name} {rule} seed {seed}"
            if key not in found:
                recipe = base.changed([f"train.seed={seed}"])
                found[key] = run(rule, recipe, dataset, arguments.steps, arguments.bank)
                arguments.out.write_text(json.dumps(found, indent=1))
                print(key, found[key], flush=True)
    print_table(found, rules)


def print_table(found: dict[str, dict[str, float]], rules: list[str]) -> None:
    """Print the means over seeds as a Markdown table."""
    names = [
        "valid recall@50",
        "valid recall@50 at the end",
        *(f"test {metric}" for metric in METRICS),
    ]
    print("| data, model | rule | seeds | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * (len(names) + 1))
    groups: dict[tuple[str, str], list[dict[str, float]]] = {}
    for key, row in found.items():
        rule = next(rule for rule in rules if f" {rule} seed " in key)
        groups.setdefault((key.split(f" {rule} seed ")[0], rule), []).append(row)
    for (where, rule), rows in groups.items():
        values = [f"{100 * statistics.fmean(row[name] for row in rows):.2f}" for name in names]
        print(f"| {where} | {rule} | {len(rows)} | " + " | ".join(values) + " |")


if __name__ == "__main__":
    main()
