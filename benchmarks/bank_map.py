"""Where a bank pays: quality of seven kinds of negatives over batch sizes, at equal samples.

    python benchmarks/bank_map.py DATASET --out results/bank/book-1m.json --samples 512000
    python benchmarks/bank_map.py DATASET --out … --rules in-batch,balanced --seeds 0,1,2

All cells have towers of 256 dimensions (`--tower`), defaults else, and see the same number of
samples; the learning rate of each cell is its own best, found with seed 0 on validation users by
doubling or halving from a rate that grows with the square root of the batch size. Metrics leave out
items that a user has had. Processor time is that of one thread, steps alone; "two-sided" is a
prototype in plain torch, whose time says nothing. Every finished training is in `--out`, and is not
repeated: several processes may fill one file, each with other cells.

Towers that read titles need data that `prepare` was given a `--tokenizer` for: `train` for the
title transformer, the encoder's folder for MiniLM. That folder must be `minilm` in the working
directory. The rule "cached softmax" has the gradients of the whole batch, of which `--sizes` rows
are encoded at a time (`CachedSoftmax`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bank_study import Learner
from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.evaluation.runs import RunEvaluator
from crossbatch.files import write_document
from crossbatch.negatives import CachedSoftmax, Candidates
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.batches import Batch
    from crossbatch.training.step import Trainer

METRICS = ("recall@50", "ndcg@50", "tail_recall@50")
DECIDES = "recall@50"
IDS = {"item_features": [], "history": "id"}  # an item is a row of a table
MINILM = {
    "name": "youtube_dnn",
    "tower": {"pooling": "recency"},
    "item_tower": "huggingface",
    "history": "id",
}
TOWERS: dict[str, dict[str, Any]] = {
    "recency pooling": IDS | {"name": "youtube_dnn", "tower": {"pooling": "recency"}},
    "gru4rec": IDS | {"name": "gru4rec"},
    "recent items": IDS | {"name": "recent_items"},
    "title transformer": {
        "name": "youtube_dnn",
        "tower": {"pooling": "recency"},
        "item_tower": "text_transformer",
        "item": {"width": 64, "layers": 2, "max_tokens": 16},
        "history": "id",
    },
    "MiniLM": MINILM | {"item": {"model": "minilm"}},
    "MiniLM, frozen": MINILM | {"item": {"model": "minilm", "frozen_layers": -1}},
    "recency pooling, titles": {"name": "youtube_dnn", "tower": {"pooling": "recency"}},
}
HISTORY = {"recent items": 10}  # else 20
ENCODER_RATE = {"MiniLM": 0.05}  # rate of pretrained weights, as a share of the others'
RULES = ("in-batch", "balanced", "deferred", "as published", "mixed", "two-sided", "cached softmax")
WARMUP = 0.1  # share of the steps before a bank is read
RATE_AT_128 = 0.0014


def sampler_of(rule: str, size: int, steps: int) -> dict[str, Any]:
    """`[sampler]` of a rule with a bank, or with uniform items, of some size."""
    bank = {"name": "cross_batch", "capacity": size, "warmup_steps": int(WARMUP * steps)}
    return {
        "in-batch": {"name": "in_batch"},
        "cached softmax": {"name": "in_batch"},
        "as published": bank | {"item_gradient": "paper"},
        "balanced": bank | {"item_gradient": "balanced"},
        "deferred": bank | {"item_gradient": "deferred"},
        "two-sided": {"name": "in_batch"},
        "mixed": {"name": "mixed", "num_uniform": size},
    }[rule]


def recipe_of(cell: dict[str, Any]) -> Recipe:
    """The recipe of a cell of the map."""
    steps = cell["samples"] // cell["batch"]
    return Recipe.from_dict(
        {
            "model": TOWERS[cell["tower"]] | {"dim": cell["dim"]},
            "sampler": sampler_of(cell["rule"], cell["size"], steps),
            "train": {
                "batch_size": cell["batch"],
                "history_length": HISTORY.get(cell["tower"], 20),
                "max_steps": steps,
                "lr": cell["lr"],
                "seed": cell["seed"],
                "threads": 1,
                **_rates_of_encoder(cell, steps),
            },
        }
    )


def _rates_of_encoder(cell: dict[str, Any], steps: int) -> dict[str, Any]:
    """Options of `[train]` for pretrained weights: small rates that rise slowly, no large steps."""
    share = ENCODER_RATE.get(cell["tower"])
    if share is None:
        return {}
    rates = {"item_tower.encoder": share * cell["lr"]}
    return {"lr_of": rates, "warmup_steps": int(WARMUP * steps), "clip_norm": 1.0}


def train(cell: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Train a cell; its metrics on validation and test users, and the time of its steps."""
    recipe = resolve(recipe_of(cell), dataset)
    step, model, flush = _learner(cell, recipe, dataset)
    batches = draw_batches(recipe.train, dataset)
    step(next(batches))  # compiles
    began = time.process_time()
    for _ in range(recipe.train.max_steps - 1):
        step(next(batches))
    seconds = time.process_time() - began
    flush()
    evaluator, found = RunEvaluator(dataset, recipe), {}
    for split in ("valid", "test"):
        unseen = evaluator.evaluate(model, split).unseen
        assert unseen is not None
        means = unseen.means()
        found[split] = {name: means[name] for name in METRICS}
    return {**cell, **found, "cpu_seconds": seconds}


def _learner(
    cell: dict[str, Any], recipe: Recipe, dataset: Dataset
) -> tuple[Callable[[Batch], object], object, Callable[[], object]]:
    """A training step, its towers, and what completes postponed updates."""
    if cell["rule"] != "two-sided":
        trainer = build_trainer(recipe, dataset)
        cached = cell["rule"] == "cached softmax"
        step = CachedStep(trainer, cell["size"]) if cached else trainer.train_step
        return step, trainer.model, trainer.optimizer.flush
    learner, done = Learner("two banks", recipe, dataset, cell["size"]), [0]

    def two_sided(batch: Batch) -> None:
        done[0] += 1
        learner.learn(batch, use_bank=done[0] > WARMUP * recipe.train.max_steps)

    return two_sided, learner.trainer.model, learner.trainer.optimizer.flush


class CachedStep:
    """A step with the loss of a whole batch whose rows are encoded a few at a time.

    It is `CachedSoftmax` with the towers, the negatives, the loss and the optimiser of a `Trainer`;
    only the order of encoding differs from `Trainer.train_step`.

    Args:
        trainer: Its users are one vector each, without features of their own.
        chunk_size: Rows that are encoded at once.
    """

    def __init__(self, trainer: Trainer, chunk_size: int) -> None:
        self.trainer = trainer
        model: Any = trainer.model
        self.cached = CachedSoftmax(
            self._loss,
            lambda history: model.users(history)[:, 0],
            model.items,
            chunk_size=chunk_size,
        )

    def __call__(self, batch: Batch) -> Tensor:
        """Learn from a batch, and return its loss."""
        loss: Tensor = self.cached(batch.history, batch.item_ids, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.trainer.step += 1
        return self.trainer.update(loss.detach())[0]

    def _loss(self, u: Tensor, v: Tensor, batch: Batch) -> Tensor:
        trainer, ids = self.trainer, batch.item_ids
        positives = Candidates(v, ids, trainer.sampler.log_q(ids))
        negatives = trainer.sampler.draw(u, positives, trainer.model.items)
        return trainer.loss(u, positives, negatives, batch)


class Map:
    """The trainings so far, in a file."""

    def __init__(self, path: Path, dataset: Dataset) -> None:
        self.path, self.dataset = path, dataset

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All of them, those of other processes too."""
        if not self.path.exists():
            return []
        found: list[dict[str, Any]] = json.loads(self.path.read_text(encoding="utf-8"))["runs"]
        return found

    def value(self, cell: dict[str, Any]) -> float:
        """Validation metric of a cell, which is trained if it was not yet."""
        for row in self.rows:
            if all(row[key] == value for key, value in cell.items()):
                return float(row["valid"][DECIDES])
        row = train(cell, self.dataset)
        write_document(self.path, self._facts() | {"runs": [*self.rows, row]})
        shown = "/".join(f"{100 * row['valid'][name]:.2f}" for name in METRICS)
        print(cell, shown, f"{row['cpu_seconds']:.0f} s", flush=True)
        return float(row["valid"][DECIDES])

    def _facts(self) -> dict[str, Any]:
        """Of the data set: items, and as how many equally likely ones they count, 1/Σq²."""
        train = Recipe().train
        q = self.dataset.sampling_law(train.min_history, train.sample_by, train.newest_days)
        items = {"items": self.dataset.num_items, "likely_items": round(1 / float(q @ q))}
        return {"dataset": self.dataset.path.name, **items}

    def best_rate(self, cell: dict[str, Any]) -> float:
        """The learning rate from which neither half nor double of it is better, with seed 0."""
        cell = cell | {"seed": 0}
        rate = float(f"{RATE_AT_128 * (cell['batch'] / 128) ** 0.5:.3g}")
        while True:
            near = [float(f"{rate * factor:.3g}") for factor in (1, 2, 0.5)]
            best = max(near, key=lambda each: self.value(cell | {"lr": each}))
            if best == rate:
                return rate
            rate = best


def measured_cells(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cell at its best rate of seed 0: test metrics as lists over seeds, and mean CPU time."""
    names = ("tower", "samples", "batch", "rule", "size")
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    cells = []
    for key, runs in found.items():
        first = [run for run in runs if run["seed"] == 0]
        rate = max(first, key=lambda run: run["valid"][DECIDES])["lr"]
        same = [run for run in runs if run["lr"] == rate]
        cell = dict(zip(names, key, strict=True)) | {"lr": rate, "seeds": len(same)}
        cell |= {name: [run["test"][name] for run in same] for name in METRICS}
        cell["valid"] = [run["valid"][DECIDES] for run in same]
        cells.append(cell | {"cpu_seconds": statistics.fmean(run["cpu_seconds"] for run in same)})
    order = {rule: number for number, rule in enumerate(RULES)}
    return sorted(
        cells, key=lambda c: (c["tower"], c["samples"], c["batch"], order[c["rule"]], c["size"])
    )


def equivalent_batch(
    cells: list[dict[str, Any]], cell: dict[str, Any], metric: str
) -> tuple[float, bool]:
    """The batch with which in-batch negatives are as good as a cell; whether none measured is.

    Between two measured batch sizes quality is taken to grow with the logarithm of the size. For a
    cell that is better than every one of them, it is the largest.
    """
    level = statistics.fmean(cell[metric])
    same = [c for c in cells if all(c[key] == cell[key] for key in ("tower", "samples"))]
    known = sorted(
        (c["batch"], statistics.fmean(c[metric]))
        for c in same
        if c["rule"] == "in-batch" and c["batch"] >= cell["batch"]
    )
    for (batch, below), (next_batch, above) in pairwise(known):
        if below <= level <= above:
            share = (level - below) / (above - below) if above > below else 0.0
            return batch * (next_batch / batch) ** share, False
    if not known or level <= known[0][1]:
        return cell["batch"], False
    return known[-1][0], True


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print the test metrics of each cell, means over seeds."""
    print("| tower | samples | batch | negatives | size | rate | seeds | recall@50 | ndcg@50 | s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for cell in measured_cells(rows):
        known = [cell[name] for name in ("tower", "samples", "batch", "rule", "size", "lr")]
        means = [f"{100 * statistics.fmean(cell[name]):.2f}" for name in METRICS[:2]]
        shown = [*known, cell["seeds"], *means, f"{cell['cpu_seconds']:.0f}"]
        print("| " + " | ".join(map(str, shown)) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=512_000)
    parser.add_argument("--tower", choices=TOWERS, default="recency pooling")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--batches", default="32,8,128,512,2048")
    parser.add_argument("--sizes", default="2432", help="rows of the bank, or uniform items")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--rate", type=float, help="learning rate of all cells, without a search")
    parser.add_argument("--table", action="store_true", help="print what was measured, and end")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = Map(arguments.out, open_dataset(arguments.dataset))
    if arguments.table:
        print_table(found.rows)
        return
    for batch in map(int, arguments.batches.split(",")):
        for rule in arguments.rules.split(","):
            sizes = ["0"] if rule == "in-batch" else arguments.sizes.split(",")
            for size in map(int, sizes):
                cell = {
                    "tower": arguments.tower,
                    "dim": arguments.dim,
                    "samples": arguments.samples,
                    "batch": batch,
                    "rule": rule,
                    "size": size,
                }
                rate = arguments.rate or found.best_rate(cell)
                for seed in map(int, arguments.seeds.split(",")):
                    found.value(cell | {"lr": rate, "seed": seed})
    print_table(found.rows)


if __name__ == "__main__":
    main()
