"""Time training steps of two source trees in one interleaved run: before and after a change.

    git worktree add /tmp/before HEAD~20
    python benchmarks/compare_versions.py --before /tmp/before/src --data benchmarks/out/data-full

A tree that cannot read the dataset gets one of its own from the same log (`--data-before`).

The shape is that of `steps.py`, at batches of 128 and 1,024. CPU time of a step on one thread, the
loading of its batch included; medians over turns, and their ratio. The last column is the largest
relative difference of the first 20 losses, which both trees compute from the same seed.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from statistics import median

from measure.workers import Process

MODELS, SAMPLERS = (
    ("youtube_dnn", "gru4rec", "mind"),
    ("in_batch", "uniform", "mixed", "cross_batch"),
)
SOURCE = Path(__file__).parent.parent / "src"

# Runs in a process of its own, with the tree under test on its path.
WORKER = """
import json, sys, time
from pathlib import Path
import torch
from crossbatch.config import Recipe
from crossbatch.data import open_dataset
try:
    from crossbatch.training.build import build_trainer, resolve
except ImportError:  # where earlier versions had it
    from crossbatch.training.assemble import build_trainer, resolve

torch.set_num_threads(1)
dataset, rows = open_dataset(Path(sys.argv[1])), {}
# older trees draw with the minimum history that the folder was prepared with, and know no other
known = "min_history" in Recipe.from_dict({"sampler": {"name": "in_batch"}}).to_dict()["train"]
least = {"min_history": 1, "sample_by": "user"} if known else {}
SAMPLERS = {"in_batch": {}, "uniform": {"num_negatives": 1280}, "mixed": {"num_uniform": 1152},
            "cross_batch": {"capacity": 2432, "warmup_steps": 0}}
TOWERS = {"youtube_dnn": {"hidden": [128]}, "gru4rec": {}, "mind": {"interests": 4}}

def prepared(model, sampler, batch):
    item = {"hidden": [128], "feature_dims": {"category": 64}}
    recipe = Recipe.from_dict({
        "model": {"name": model, "dim": 64, "history": "content", "item_features": ["category"],
                  "user_features": [], "item": item, "tower": TOWERS[model],
                  "normalize": False, "history_dropout": 0.0},
        "loss": {"temperature": 1.0},
        "sampler": {"name": sampler} | SAMPLERS[sampler],
        "train": {"batch_size": batch, "history_length": 20, "device": "cpu", "adam": "lazy",
                  "lr": 0.001, "schedule": "constant", "max_steps": 1_000_000}
                 | least})
    trainer = build_trainer(resolve(recipe, dataset), dataset)
    batches = dataset.batches(batch, seed=0, history_length=20, **least)
    return lambda: float(trainer.train_step(next(batches)).loss)

for line in sys.stdin:
    model, sampler, batch, count = json.loads(line)
    if (model, sampler, batch) not in rows:
        rows.clear()
        torch.manual_seed(0)
        step = rows[model, sampler, batch] = prepared(model, sampler, batch)
        first = [step() for _ in range(4 * count)][:20]
    step = rows[model, sampler, batch]
    for _ in range(count // 2):
        step()
    start = time.process_time()
    for _ in range(count):
        step()
    print(json.dumps([(time.process_time() - start) / count, first]), flush=True)
"""


def started(source: Path, data: Path) -> Process:
    command = [sys.executable, "-c", WORKER, str(data.resolve())]
    return Process(command, threads=1, PYTHONPATH=str(source.resolve()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="folder src of the other tree")
    parser.add_argument("--data", type=Path, required=True, help="dataset with a category feature")
    parser.add_argument("--data-before", type=Path, help="the same for the other tree")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="rows whose label this expression finds")
    options = parser.parse_args()
    trees = [(options.before, options.data_before or options.data), (SOURCE, options.data)]
    workers = [started(source, data) for source, data in trees]
    print("| | before, ms | now, ms | ratio | losses differ by |\n|---|---|---|---|---|")
    for batch, model, sampler in ((b, m, s) for b in (128, 1024) for m in MODELS for s in SAMPLERS):
        label = f"{model} {sampler}, batch {batch:,}"
        if not re.search(options.only, label):
            continue
        row = (model, sampler, batch, 64 if batch == 128 else 16)
        turns = [[worker.ask(row) for worker in workers] for _ in range(options.rounds)]
        before, now = (1000 * median(t[i][0] for t in turns) for i in (0, 1))
        pairs = zip(turns[0][0][1], turns[0][1][1], strict=True)
        gap = max(abs(a - b) / abs(a) for a, b in pairs)
        print(
            f"| {label} | {before:.2f} | {now:.2f} | {now / before:.2f} | {gap:.0e} |", flush=True
        )
    for worker in workers:
        worker.close()


if __name__ == "__main__":
    main()
