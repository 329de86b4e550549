"""How far the item-side gradient of a bank is from that of a true large batch, while towers move.

    python benchmarks/delayed_push.py DATASET --out results/delayed-push/beauty.json

What `--out` has is not measured again.

A run trains by one rule. In its last `--window` steps the item side of the loss is also computed
with all M rows of the bank encoded anew, which is the true gradient of B + M columns. Both are
summed over the window, for a tower's shared weights and for its id table: their cosine and the
ratio of their lengths say what the delay of the bank does, beyond the noise of single steps. The
*length of a step* (root mean square, over the true one) is that noise: Adam divides by it, so that
a noisier gradient moves weights less. *Left over* is the sum of a step's item-side gradients, which
is zero for a true batch, as a share of its pulls. Sizes of the bank are delays: a row stays M/B
steps. The rate is constant unless `--schedule` says otherwise: a cosine is next to zero in the last
steps, where cached rows are hardly stale.
"""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bank_map import TOWERS, recipe_of
from crossbatch.data import open_dataset
from crossbatch.files import write_document
from crossbatch.negatives import Candidates, CrossBatchSampler, sampled_softmax_loss
from crossbatch.negatives.deferred import GradientBank
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from torch import Tensor

    from crossbatch.data import Dataset
    from crossbatch.data.dataset.batches import Batch
    from crossbatch.training.step import Trainer

RULES = ("balanced", "deferred", "as published")
BATCH = 32


class Sums:
    """Gradients of some weights, added up over steps."""

    def __init__(self) -> None:
        self.of: dict[str, Tensor] = {}
        self.squares: dict[str, float] = {}  # of the steps' lengths, added up

    def add(self, name: str, gradients: list[Tensor]) -> None:
        """Add one step's gradients, as one vector."""
        flat = torch.cat([each.to_dense().double().flatten() for each in gradients])
        self.of[name] = self.of.get(name, torch.zeros_like(flat)) + flat
        self.squares[name] = self.squares.get(name, 0.0) + float(flat.square().sum())

    def compare(self, name: str, truth: str) -> dict[str, float]:
        """Cosine and ratio of lengths of the sums, and ratio of the lengths of single steps."""
        mine, theirs = self.of[name], self.of[truth]
        cosine = torch.nn.functional.cosine_similarity(mine, theirs, dim=0)
        single = (self.squares[name] / self.squares[truth]) ** 0.5
        ratio = float(mine.norm() / theirs.norm())
        return {"cosine": float(cosine), "length": ratio, "length of a step": single}


def measure(cell: dict[str, Any], dataset: Dataset) -> dict[str, float]:
    """Train by the cell's rule, and compare the item side of its last steps with the truth."""
    schedule, window = cell["schedule"], cell["window"]
    recipe = resolve(recipe_of(cell), dataset).changed([f"train.schedule={schedule}"])
    trainer, batches = build_trainer(recipe, dataset), draw_batches(recipe.train, dataset)
    steps, sums, left = recipe.train.max_steps, Sums(), 0.0
    for step in range(steps):
        batch = next(batches)
        if step >= steps - window:
            left += _compare_step(trainer, batch, sums) / window
        trainer.train_step(batch)
    found = {"left over": left}
    for part in ("shared", "ids"):
        if f"{part} true" in sums.of:
            known = sums.compare(f"{part} rule", f"{part} true")
            found |= {f"{part}: {name}": value for name, value in known.items()}
    return found


def _compare_step(trainer: Trainer, batch: Batch, sums: Sums) -> float:
    """Add the item-side gradients of a step by the rule and in truth; what the rule leaves over."""
    trainer.optimizer.flush()
    model: Any = copy.deepcopy(trainer.model)  # whose tables no optimiser follows
    model.item_tower.eval()  # without dropout, which would differ between the two
    sampler = trainer.sampler
    assert isinstance(sampler, CrossBatchSampler)
    temperature, ids = trainer.temperature, batch.item_ids
    with torch.no_grad():
        users = model.users(batch.history)[:, 0]
    kept = {name: value.clone() for name, value in sampler.bank.state_dict().items()}
    table = model.item_tower.table.weight
    shared = [weight for weight in model.item_tower.parameters() if weight is not table]
    seen: list[Tensor] = []

    def encode(item_ids: Tensor) -> Tensor:
        vectors: Tensor = model.items(item_ids)
        vectors.register_hook(lambda gradient: seen.append(gradient.sum(dim=0)))
        return vectors

    for name in ("rule", "true"):
        positives = Candidates(encode(ids), ids, sampler.log_q(ids))
        if name == "rule":
            negatives = sampler.draw(users, positives, encode)
        else:
            cached = sampler.bank.read()
            fresh = encode(cached.item_ids.clone())
            negatives = positives + Candidates(
                fresh, cached.item_ids, cached.log_q, cached=True, live=True
            )
        loss = sampled_softmax_loss(users, positives, negatives, temperature=temperature)
        weights = [table, *shared]
        found = torch.autograd.grad(loss, weights, allow_unused=True)
        sums.add(f"ids {name}", [found[0]])
        rest = [each for each in found[1:] if each is not None]
        if rest:
            sums.add(f"shared {name}", rest)
        if name == "rule":
            left = float(sum(seen, torch.zeros(users.shape[1])).norm())
            pull = float(users.mean(dim=0).norm()) / float(temperature)
            sampler.bank.load_state_dict(kept)
            assert isinstance(sampler.bank, GradientBank) or not seen[2:]
    return left / pull


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tower", choices=TOWERS, default="recency pooling, titles")
    parser.add_argument("--sizes", default="256,2432")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--rate", type=float, default=0.0005)
    parser.add_argument("--schedule", choices=("constant", "cosine"), default="constant")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--window", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dataset = open_dataset(given.dataset)
    rows: list[dict[str, Any]] = []
    if given.out.exists():
        rows = json.loads(given.out.read_text(encoding="utf-8"))["rows"]
    for rule in given.rules.split(","):
        for size in map(int, given.sizes.split(",")):
            cell = {"tower": given.tower, "dim": 256, "samples": given.steps * BATCH}
            cell |= {"batch": BATCH, "rule": rule, "size": size, "lr": given.rate, "seed": 0}
            cell |= {"schedule": given.schedule, "window": given.window}
            if any(row.items() >= cell.items() for row in rows):
                continue
            found = measure(cell, dataset)
            rows.append(cell | found)
            write_document(given.out, {"dataset": dataset.path.name, "rows": rows})
            shown = ", ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(f"{rule}, {size} rows, rate {given.rate:g}: {shown}", flush=True)


if __name__ == "__main__":
    main()
