"""Bias and variance of the item gradient with a bank, compared with a true large batch.

    crossbatch train --recipe amazon-book-1m --data book-1m --out run
    python benchmarks/item_gradient.py run

Batches of B + M samples are encoded by the trained towers. Each rule sees B of them as the batch
and M as a bank without staleness; the truth is the softmax over all B + M with gradient everywhere.
Gradients are taken at the vectors, summed by item over the catalogue, in expectation over draws:

    bias      ‖E[g] − E[truth]‖ / ‖E[truth]‖, from paired draws, corrected for their number
    variance  E‖g − E[g]‖² of one step, as a multiple of the in-batch rule's
    users     mean distance of a row's own gradient from the truth's, relative to its length
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from crossbatch.negatives import Candidates
from crossbatch.training.build import build_sampler, draw_batches
from crossbatch.training.run_folder import SavedRun, open_run
from variants import RULES, Step


class Tally:
    """Running sums of a rule's item gradients and of their distance to the truth."""

    def __init__(self, rows: int, dim: int) -> None:
        self.total = torch.zeros(rows, dim, dtype=torch.float64)
        self.gap = torch.zeros_like(self.total)
        self.squares = self.gap_squares = self.users = 0.0
        self.draws = 0

    def add(self, gradient: Tensor, truth: Tensor, users: float) -> None:
        """Add one draw."""
        self.total += gradient
        self.gap += gradient - truth
        self.squares += float(gradient.square().sum())
        self.gap_squares += float((gradient - truth).square().sum())
        self.users += users
        self.draws += 1

    @property
    def variance(self) -> float:
        """E‖g − E[g]‖²."""
        n = self.draws
        return (self.squares - float(self.total.square().sum()) / n) / (n - 1)

    def bias(self, truth: Tally) -> float:
        """Relative bias; the squared norms are corrected for the noise of a mean of n draws."""
        gap = _squared_mean(self.gap, self.gap_squares, self.draws)
        length = _squared_mean(truth.total, truth.squares, self.draws)
        return (max(gap, 0.0) / length) ** 0.5


def _squared_mean(total: Tensor, squares: float, n: int) -> float:
    return (float(total.square().sum()) - squares) / (n * (n - 1))


def encoded(run: SavedRun, size: int, draws: int, seed: int) -> list[tuple[Tensor, Candidates]]:
    """Users and positives of `draws` batches."""
    sampler = build_sampler(run.recipe.changed(['sampler={name="in_batch"}']), run.dataset)
    batches = draw_batches(run.recipe.train, run.dataset, batch_size=size, seed=seed)
    found = []
    with torch.no_grad():
        for _, batch in zip(range(draws), batches, strict=False):
            u, v = run.towers(batch.history, batch.item_ids, batch.user_ids)
            found.append((u, Candidates(v, batch.item_ids, sampler.log_q(batch.item_ids))))
    return found


def gradients(rule: str, step: Step, rows: int) -> tuple[Tensor, Tensor]:
    """Gradient by item `[rows, d]` and by row of the batch `[B, d]`."""
    users = step.users.clone().requires_grad_()
    v = step.positives.embeddings.clone().requires_grad_()
    positives = Candidates(v, step.positives.item_ids, step.positives.log_q)
    live = Step(users, positives, step.items, step.earlier, step.temperature)
    RULES[rule](live).backward()
    by_item = torch.zeros(rows, v.shape[1], dtype=torch.float64)
    by_item.index_add_(0, positives.item_ids, v.grad.double())  # type: ignore[union-attr]
    assert users.grad is not None
    return by_item, users.grad


def measure(run: SavedRun, B: int, M: int, draws: int, seed: int) -> dict[str, dict[str, float]]:
    temperature = run.recipe.loss.temperature
    rows = run.dataset.num_items + 1
    tallies = {name: Tally(rows, run.recipe.model.dim) for name in ("truth", *RULES)}
    nothing = Candidates(torch.zeros(0, run.recipe.model.dim), *_empty())
    for users, all_columns in encoded(run, B + M, draws, seed):
        whole = Step(users, all_columns, nothing, nothing, temperature)
        truth, by_row = gradients("in-batch", whole, rows)
        by_row = by_row[:B] * (B + M) / B  # of a mean over B + M rows
        tallies["truth"].add(truth, truth, 0.0)
        log_z = whole.log_partition()
        step = Step(
            users[:B],
            _rows(all_columns, slice(0, B)),
            _rows(all_columns, slice(B, None)).detached(),
            Candidates(users[B:], all_columns.item_ids[B:], log_z[B:]),
            temperature,
        )
        for name in RULES:
            by_item, load_user_tower = gradients(name, step, rows)
            away = (load_user_tower - by_row).norm(dim=1) / by_row.norm(dim=1).clamp(min=1e-12)
            tallies[name].add(by_item, truth, float(away.mean()))
    base = tallies["in-batch"].variance
    return {
        name: {
            "bias": tally.bias(tallies["truth"]),
            "variance": tally.variance / base,
            "users": tally.users / tally.draws,
        }
        for name, tally in tallies.items()
    }


def _rows(columns: Candidates, part: slice) -> Candidates:
    return Candidates(columns.embeddings[part], columns.item_ids[part], columns.log_q[part])


def _empty() -> tuple[Tensor, Tensor]:
    return torch.zeros(0, dtype=torch.int64), torch.zeros(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--bank", type=int, default=2432)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    run = open_run(arguments.run)
    found = measure(run, arguments.batch, arguments.bank, arguments.draws, arguments.seed)
    print("| rule | bias of the item side | variance of the item side | user side |")
    print("|---|---|---|---|")
    for name, row in found.items():
        print(f"| {name} | {row['bias']:.2f} | {row['variance']:.2f} | {row['users']:.2f} |")


if __name__ == "__main__":
    main()
