"""Tuned baselines on prepared datasets: test metrics of both protocols, settings, processor time.

    python benchmarks/baselines.py book-1m beauty ml-1m
    python benchmarks/baselines.py shop --names rp3beta,als

Settings are chosen by validation recall@50 without seen items, with the default history of 20
items; set OMP_NUM_THREADS=1 for the processor time of one thread.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from crossbatch.data import open_dataset
from crossbatch.evaluation.baselines import BASELINES
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.list_measures import Popularity
from crossbatch.evaluation.tuned_baselines import tune_baseline
from measure.report import header, table_line

HEADS = ("dataset", "baseline", "settings", "R@50", "NDCG@50", "R@50 unseen", "NDCG@50 unseen",
         "fit, CPU s", "tuning, CPU s")  # fmt: skip


def main() -> None:
    """Print one row per dataset and baseline."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("datasets", nargs="+", type=Path)
    parser.add_argument("--names", default=",".join(BASELINES))
    arguments = parser.parse_args()
    print("\n".join(header(*HEADS)))
    for path in arguments.datasets:
        dataset = open_dataset(path)
        popularity = Popularity.from_counts(dataset.item_counts)
        for name in arguments.names.split(","):
            unavailable = BASELINES[name].unavailable(dataset)
            if unavailable:
                print(table_line(path.name, unavailable, *[""] * (len(HEADS) - 2)), flush=True)
                continue
            tuned = tune_baseline(dataset, name, exclude_history=True)
            test = evaluate_recommender(
                tuned.recommend, dataset.eval_batches("test"), popularity=popularity
            )
            assert test.unseen is not None
            metrics = [
                f"{100 * found.means()[key]:.2f}"
                for found in (test, test.unseen)
                for key in ("recall@50", "ndcg@50")
            ]
            settings = ", ".join(f"{key} {value:g}" for key, value in tuned.settings.items())
            costs = (f"{tuned.fit_cpu_seconds:.1f}", f"{tuned.tuning_cpu_seconds:.1f}")
            print(table_line(path.name, name, settings, *metrics, *costs), flush=True)


if __name__ == "__main__":
    main()
