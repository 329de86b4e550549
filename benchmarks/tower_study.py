"""What else could make the default tower better: one change at a time, at equal samples.

    python benchmarks/tower_study.py DATASET --out results/towers/book-1m.json --passes 2
    python benchmarks/tower_study.py DATASET --out … --changes "default;width 128" --seeds 0,1,2

The default is `recent_items` with the width and the other settings that `crossbatch train` gives it
on the dataset; later items are masked where the "auto" sampler masks them. Every training sees the
same samples, `--passes` times, and ends where its cosine schedule does; no best step is chosen.
Metrics leave out items that a user has had; what helps is chosen on validation users. Processor
time is that of one thread, steps alone. Every finished training is in `--out`, and is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.files import write_document
from crossbatch.kernels.unit_vectors import unit_vectors
from crossbatch.models import TwoTower
from crossbatch.negatives import Candidates
from crossbatch.training.auto_model import with_width
from crossbatch.training.auto_sampler import LATER_SHARE, later_share
from crossbatch.training.build import build_towers, build_trainer, draw_batches, resolve
from crossbatch.training.step import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.data import Dataset

METRICS = ("recall@50", "ndcg@50", "tail_recall@50")
DEFAULT = "default"
BATCH, RATE, LENGTH = 256, 0.002, 10
AVERAGED, SNAPSHOTS = 0.25, 10  # the share of the steps whose weights are averaged, in so many


class Untied(TwoTower):
    """Towers whose histories have an item tower of their own."""

    def describe(self, item_ids: Tensor) -> Tensor:
        """Vectors of items as histories contain them."""
        return unit_vectors(self.history_tower(item_ids))


def untie(model: TwoTower, recipe: Recipe, dataset: Dataset) -> None:
    """Give the histories a second item tower."""
    model.__class__ = Untied
    model.history_tower = build_towers(recipe, dataset).item_tower


def without_layer(model: TwoTower, recipe: Recipe, dataset: Dataset) -> None:
    """Make each query the vector of its item as it is."""
    model.user_tower.layer = torch.nn.Identity()


def add_margin(largest: float, trainer: Trainer) -> None:
    """Ask for a distance between positives and negatives that grows with an item's rarity.

    The margin is `largest` · (q_min / q)^¼, as in LDAM (Cao et al., 2019).
    """
    known = trainer.sampler.frequency.log_q
    rarest = float(known[known.isfinite()].min())

    class WithMargin(Trainer):
        __slots__ = ()

        def loss(self, u: Any, positives: Candidates, negatives: Candidates, batch: Any) -> Tensor:
            margin = largest * ((rarest - positives.log_q) / 4).exp()
            harder = Candidates(positives.embeddings, positives.item_ids, positives.log_q + margin)
            return Trainer.loss(self, u, harder, negatives, batch)

    trainer.__class__ = WithMargin


def scale_items(power: float, trainer: Trainer) -> None:
    """Divide the scores of an item by a temperature of its own, T · (q / mean q)^power."""
    model, log_q = trainer.model, trainer.sampler.frequency.log_q
    middle = float(log_q[log_q.isfinite()].mean())
    factors = (-power * (log_q - middle).clamp(-4, 4)).exp()  # [num_items + 1]
    whole = model.items

    def items(ids: Tensor) -> Tensor:
        return whole(ids) * factors[ids].unsqueeze(1)

    model.items = items


@dataclass(frozen=True)
class Change:
    """What a training does unlike the default.

    Attributes:
        recipe: Other values of the recipe's sections.
        passes: Factor of the passes over the samples.
        towers: Changes the towers before the optimiser is made.
        trainer: Changes the trainer.
        average: Whether the weights are averaged over the end of the training.
    """

    recipe: dict[str, dict[str, Any]] = field(default_factory=dict)
    passes: float = 1.0
    towers: Callable[[TwoTower, Recipe, Dataset], None] | None = None
    trainer: Callable[[Trainer], None] | None = None
    average: bool = False


CHANGES = {
    DEFAULT: Change(),
    "log-q × 0.9": Change({"loss": {"q_power": 0.9}}),
    "log-q × 0.8": Change({"loss": {"q_power": 0.8}}),
    "width 64": Change({"model": {"dim": 64}}),
    "width 128": Change({"model": {"dim": 128}}),
    "width 256": Change({"model": {"dim": 256}}),
    "width 512": Change({"model": {"dim": 512}}),
    "width 64, log-q × 0.8": Change({"model": {"dim": 64}, "loss": {"q_power": 0.8}}),
    "width 128, log-q × 0.8": Change({"model": {"dim": 128}, "loss": {"q_power": 0.8}}),
    "width 256, log-q × 0.8": Change({"model": {"dim": 256}, "loss": {"q_power": 0.8}}),
    "width 256, log-q × 0.9": Change({"model": {"dim": 256}, "loss": {"q_power": 0.9}}),
    "batch 512": Change({"train": {"batch_size": 512, "lr": 0.0028}}),
    "queries without a layer": Change(towers=without_layer),
    "averaged weights": Change(average=True),
    "averaged weights, constant rate": Change({"train": {"schedule": "constant"}}, average=True),
    "history dropout 0.1": Change({"model": {"history_dropout": 0.1}}),
    "history dropout 0.5": Change({"model": {"history_dropout": 0.5}}),
    "history of 5": Change({"train": {"history_length": 5}}),
    "history of 20": Change({"train": {"history_length": 20}}),
    "twice as long": Change(passes=2),
    "no content": Change({"model": {"item_features": []}}),
    "untied tables": Change(towers=untie),
    "margin for rare items": Change(trainer=partial(add_margin, 1.0)),
    "colder for rare items": Change(trainer=partial(scale_items, 0.05)),
    "warmer for rare items": Change(trainer=partial(scale_items, -0.05)),
}


def recipe_of(change: Change, passes: float, seed: int, dataset: Dataset) -> Recipe:
    """The default recipe of the tower with a change."""
    train = {"batch_size": BATCH, "lr": RATE, "history_length": LENGTH}
    train |= change.recipe.get("train", {})
    samples = dataset.num_samples(1, 0.0)
    steps = math.ceil(passes * change.passes * samples / train["batch_size"])
    document = {
        "model": {"name": "recent_items"} | change.recipe.get("model", {}),
        "sampler": {"name": "in_batch"},
        "loss": change.recipe.get("loss", {}),
        "train": train | {"max_steps": steps, "seed": seed, "threads": 1},
    }
    recipe = resolve(with_width(Recipe.from_dict(document), dataset), dataset)
    masks = later_share(recipe, dataset) >= LATER_SHARE
    return recipe.changed([f"loss.mask_later={str(masks).lower()}"])


def trainer_of(change: Change, recipe: Recipe, dataset: Dataset) -> Trainer:
    """The trainer of a recipe with what no recipe can say."""
    if change.towers is None:
        trainer = build_trainer(recipe, dataset)
    else:
        torch.manual_seed(recipe.train.seed)
        model = build_towers(recipe, dataset)
        change.towers(model, recipe, dataset)
        trainer = build_trainer(recipe, dataset, model)
        trainer.log_temperature = torch.zeros(())  # the tower divides its queries itself
    if change.trainer is not None:
        change.trainer(trainer)
    return trainer


def train(name: str, passes: float, seed: int, dataset: Dataset) -> dict[str, Any]:
    """Train with a change; metrics on validation and test users, and the time of the steps."""
    change = CHANGES[name]
    recipe = recipe_of(change, passes, seed, dataset)
    trainer = trainer_of(change, recipe, dataset)
    batches = draw_batches(recipe.train, dataset, later=trainer.mask_later)
    trainer.train_step(next(batches))  # compiles
    steps, sums, seconds = recipe.train.max_steps, {}, 0.0
    every = max(1, int(AVERAGED * steps / SNAPSHOTS))
    for step in range(2, steps + 1):
        batch, began = next(batches), time.process_time()
        trainer.train_step(batch)
        seconds += time.process_time() - began
        if change.average and (steps - step) % every == 0 and steps - step < AVERAGED * steps:
            trainer.optimizer.flush()
            for key, value in trainer.model.state_dict().items():
                sums.setdefault(key, []).append(value.clone())
    trainer.optimizer.flush()
    if change.average:
        means = {key: torch.stack(values).mean(dim=0) for key, values in sums.items()}
        trainer.model.load_state_dict(means)
    evaluator, found = RunEvaluator(dataset, recipe), {}
    for split in ("valid", "test"):
        unseen = evaluator.evaluate(trainer.model, split).unseen
        assert unseen is not None
        means = unseen.means()
        found[split] = {metric: means[metric] for metric in METRICS}
    cell = {"change": name, "passes": passes, "seed": seed, "steps": steps}
    return cell | found | {"cpu_seconds": seconds}


def recorded(path: Path) -> list[dict[str, Any]]:
    """The trainings in a file."""
    if not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def measured(runs: list[dict[str, Any]], split: str = "valid") -> list[dict[str, Any]]:
    """Each change, means over seeds, and its gain over the default where that has these seeds."""
    found: dict[tuple[float, str], dict[int, dict[str, Any]]] = {}
    for run in runs:
        found.setdefault((run["passes"], run["change"]), {})[run["seed"]] = run
    rows = []
    for (passes, name), by_seed in found.items():
        plain = found.get((passes, DEFAULT), {})
        if plain and not set(by_seed) & set(plain):
            continue
        seeds = sorted(set(by_seed) & set(plain)) if plain else sorted(by_seed)
        row = {"change": name, "passes": passes, "seeds": len(seeds), "time": None}
        for metric in METRICS:
            row[metric] = statistics.fmean(by_seed[seed][split][metric] for seed in seeds)
        if plain:
            for metric in METRICS:
                base = statistics.fmean(plain[seed][split][metric] for seed in seeds)
                row[f"gain in {metric}"] = row[metric] - base
            times = [by_seed[seed]["cpu_seconds"] / plain[seed]["cpu_seconds"] for seed in seeds]
            row["time"] = statistics.fmean(times)
        rows.append(row)
    order = {name: number for number, name in enumerate(CHANGES)}
    return sorted(rows, key=lambda row: (row["passes"], order.get(row["change"], len(order))))


def print_table(runs: list[dict[str, Any]]) -> None:
    """Print the validation metrics of each change and how they differ from the default's."""
    print("| change | passes | seeds | recall@50 | NDCG@50 | tail recall@50 | time |")
    print("|---|---|---|---|---|---|---|")
    for row in measured(runs):
        cells = [row["change"], row["passes"], row["seeds"]]
        for metric in METRICS:
            gain = row.get(f"gain in {metric}")
            shown = "" if gain is None else f" ({100 * gain:+.2f})"
            cells.append(f"{100 * row[metric]:.2f}{shown}")
        time_of = "" if row["time"] is None else f"{row['time']:.2f}"
        print("| " + " | ".join(map(str, [*cells, time_of])) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--passes", type=float, default=2.0)
    parser.add_argument("--changes", default=";".join(CHANGES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--table", action="store_true", help="print what was measured, and end")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset, out = open_dataset(arguments.dataset), arguments.out
    for seed in [] if arguments.table else map(int, arguments.seeds.split(",")):
        for name in arguments.changes.split(";"):
            wanted = (name, arguments.passes, seed)
            if wanted in {(run["change"], run["passes"], run["seed"]) for run in recorded(out)}:
                continue
            row = train(*wanted, dataset)
            name_of_set = {"dataset": dataset.path.name}
            write_document(out, name_of_set | {"runs": [*recorded(out), row]})
            shown = " / ".join(f"{100 * row['valid'][metric]:.2f}" for metric in METRICS)
            print(f"{name}, seed {seed}: {shown}, {row['cpu_seconds']:.0f} s", flush=True)
    print_table(recorded(out))


if __name__ == "__main__":
    main()
