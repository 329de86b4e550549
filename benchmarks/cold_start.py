"""Compares replacements for the id vector of an item without interactions.

    crossbatch prepare LOG --items ITEMS --cold-items 0.05 --out data
    crossbatch train --recipe demo --data data --out run
    python benchmarks/cold_start.py run

The dataset must have items withheld from training (`--cold-items`), and the model must use ids and
content. All items are ranked for the test users, lists of 50: recall of withheld items, their share
of all places (compare with their share of the targets), and recall of all items.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.evaluation import encode_items
from crossbatch.retrieval import ExactIndex
from crossbatch.serving.bundle.change_items import mean_id_vector
from crossbatch.training.run_folder import SavedRun, open_run

if TYPE_CHECKING:
    from torch import Tensor

K = 50


def id_vectors(table: Tensor, counts: np.ndarray) -> dict[str, Tensor | None]:
    """The replacements to compare; None keeps the initial rows."""
    ones = (np.asarray(counts) > 0).astype(np.int64)
    return {
        "as initialised": None,
        "zeros": torch.zeros(table.shape[1]),
        "mean over items": mean_id_vector(table, ones),
        "mean over choices (ours)": mean_id_vector(table, counts),
    }


@torch.no_grad()
def measure(saved: SavedRun, cold: Tensor) -> dict[str, float]:
    """Recall of withheld and of all items, and the withheld items' share of places."""
    index = ExactIndex(encode_items(saved.towers, saved.dataset.num_items))
    is_cold = torch.zeros(saved.dataset.num_items + 1, dtype=torch.bool)
    is_cold[cold] = True
    sums = dict.fromkeys(("cold hits", "cold targets", "hits", "targets", "cold places"), 0.0)
    users = 0
    length = saved.recipe.train.history_length
    for batch in saved.dataset.eval_batches("test", history_length=length):
        top = index.search(saved.towers.users(batch.history, batch.user_ids), K).item_ids
        users += len(top)
        sums["cold places"] += float(is_cold[top].sum())
        for listed, targets in zip(top, batch.targets, strict=True):
            wanted = targets.unique()
            hit = torch.isin(wanted, listed)
            sums["hits"] += float(hit.sum())
            sums["targets"] += len(wanted)
            sums["cold hits"] += float(hit[is_cold[wanted]].sum())
            sums["cold targets"] += float(is_cold[wanted].sum())
    return {
        "cold recall": sums["cold hits"] / max(1.0, sums["cold targets"]),
        "cold places": sums["cold places"] / (users * K),
        "cold targets": sums["cold targets"] / max(1.0, sums["targets"]),
        "recall": sums["hits"] / max(1.0, sums["targets"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("runs", type=Path, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for path in args.runs:
        saved = open_run(path)
        counts = np.array(saved.dataset.item_counts)
        cold = torch.from_numpy(np.flatnonzero(counts[1:] == 0) + 1)
        table = getattr(saved.towers.item_tower, "table", None)
        if table is None or not len(cold):
            parser.error(f"{path} needs a tower with ids and a dataset with --cold-items")
        print(f"\n{path}: {len(cold)} of {saved.dataset.num_items} items withheld")
        for name, vector in id_vectors(table.weight.detach().clone(), counts).items():
            if vector is not None:
                table.weight.data[cold] = vector
            shares = "  ".join(f"{key} {value:6.2%}" for key, value in measure(saved, cold).items())
            print(f"  {name:<26}{shares}", flush=True)


if __name__ == "__main__":
    main()
