"""Runs of one recipe with several seeds against tuned baselines, on the same test users.

    python benchmarks/opponents.py --data book-1m --runs runs/s0 runs/s1 runs/s2 \
        --out results/opponents/book-1m.json

Baselines are tuned on validation users by recall@50 without seen items, as `crossbatch evaluate`
does. A difference is of the mean over seeds from a baseline, with a 95 % interval over users drawn
in pairs. Processor time is that of one thread: set OMP_NUM_THREADS=1. With `--again` the settings
of the baselines that it does not name are taken from the record in `--out`, and not tuned anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.bootstrap import paired_difference
from crossbatch.data import Dataset, open_dataset
from crossbatch.evaluation.baselines import BASELINES
from crossbatch.evaluation.evaluator import evaluate_recommender
from crossbatch.evaluation.list_measures import Popularity
from crossbatch.evaluation.tuned_baselines import tune_baseline
from crossbatch.files import read_document, write_document

if TYPE_CHECKING:
    from collections.abc import Mapping

METRICS = ("recall@20", "recall@50", "ndcg@50")
DECIDES = "recall@50"


def ours(runs: list[Path]) -> dict[str, Any]:
    """Test metrics of each run with seen items left out, its model and what it cost."""
    rows = []
    for run in runs:
        result = read_document(run / "result.json", "train the run")
        config = read_document(run / "config.json", "train the run")
        race = [each["seconds"] for each in config.get("race", {}).get("measured", [])]
        steps = result["cpu_seconds_per_1000_steps"] * result["steps"] / 1000
        rows.append(
            {
                "seed": result["seed"],
                "model": result["model"],
                "history_length": config["train"]["history_length"],
                "test": {
                    name: result["test_unseen"][name] for name in (*METRICS, "tail_recall@50")
                },
                "cpu_seconds": {"race": sum(race), "steps": steps},
            }
        )
    return {"runs": rows, "means": {name: _mean(rows, name) for name in METRICS}}


def _mean(rows: list[dict[str, Any]], name: str) -> list[float]:
    """Mean and standard deviation over seeds."""
    values = [row["test"][name] for row in rows]
    return [float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0]


def per_user(runs: list[Path], name: str) -> np.ndarray:
    """`[U]` mean over the runs of each test user's metric."""
    return np.mean([np.load(run / "per_user" / f"test_unseen_{name}.npy") for run in runs], axis=0)


def paired_gaps(runs: list[Path], other: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """By which the runs' metrics exceed those of the same users, with a 95 % interval."""
    gaps = {name: paired_difference(per_user(runs, name), other[name]) for name in METRICS}
    return {name: [gap.value, gap.low, gap.high] for name, gap in gaps.items()}


def first_reached(runs: list[Path], value: float) -> list[float | None]:
    """Processor seconds of steps until each run's validation metric reached `value`."""
    found: list[float | None] = []
    for run in runs:
        lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
        passed = [e["cpu_seconds"] for e in lines if e["event"] == "eval" and e["value"] >= value]
        found.append(passed[0] if passed else None)
    return found


def opponent(
    dataset: Dataset, name: str, runs: list[Path], earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A baseline, tuned as `earlier` says or anew, measured, and how far the runs are from it."""
    unavailable = BASELINES[name].unavailable(dataset)
    if unavailable:
        return {"name": name, "left_out": unavailable}
    if earlier is None:
        tuned = tune_baseline(dataset, name, exclude_history=True)
        recommend, facts = (
            tuned.recommend,
            {f.name: getattr(tuned, f.name) for f in dataclasses.fields(tuned)},
        )
        facts["valid"] = tuned.value
    else:
        recommend, facts = BASELINES[name].make(dataset, **earlier["settings"]), earlier
    popularity = Popularity.from_counts(dataset.item_counts)
    batches = dataset.eval_batches("test")
    test = evaluate_recommender(recommend, batches, popularity=popularity).unseen
    assert test is not None
    return {
        "name": name,
        "settings": dict(facts["settings"]),
        "test": {metric: test.means()[metric] for metric in (*METRICS, "tail_recall@50")},
        **{key: facts[key] for key in ("valid", "fit_cpu_seconds", "tuning_cpu_seconds")},
        "difference": paired_gaps(runs, test.per_user),
        "reached_after_cpu_seconds": first_reached(runs, facts["valid"]),
    }


def main() -> None:
    """Measure the baselines of one dataset and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--again", nargs="*", help="baselines to tune anew; all without --again")
    arguments = parser.parse_args()
    dataset, earlier = open_dataset(arguments.data), {}
    if arguments.again is not None:
        record = read_document(arguments.out, "leave --again out")
        earlier = {row["name"]: row for row in record["opponents"] if "settings" in row}
        earlier = {name: row for name, row in earlier.items() if name not in arguments.again}
    record = {
        "data": arguments.data.name,
        "test_users": dataset.num_eval_users("test"),
        "ours": ours(arguments.runs),
        "opponents": [
            opponent(dataset, name, arguments.runs, earlier.get(name)) for name in BASELINES
        ],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_document(arguments.out, record)
    for row in record["opponents"]:
        print(row["name"], row.get("left_out") or {k: row[k] for k in ("test", "difference")})


if __name__ == "__main__":
    main()
