"""What does context bring? The same towers on a log of news clicks, with and without it.

    python benchmarks/context_quality.py globo_news --out context --users 40000 --seeds 3

`globo_news` is a folder with `interactions.parquet`: user, item, timestamp (ms), and environment,
device group, operating system, country, region and referrer of each click. A sample of users is
prepared once with `--split leave_last_out`; each arm reads other context features. Differences are
those of the same test users, averaged over seeds, with 95 % intervals over users.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import polars as pl

from crossbatch import Recipe, fit
from crossbatch.data import Column, PrepareOptions, open_dataset, open_source, prepare
from crossbatch.data.readers import ReadOptions

COLUMNS = ("environment", "deviceGroup", "os", "country", "region", "referrer_type")
CLOCK = ("hour_of_day", "since_last")
LOGGED = [f"click_{name}" for name in COLUMNS]
ARMS = {
    "none": [],
    "device (environment, group, system)": LOGGED[:3],
    "place (country, region)": LOGGED[3:5],
    "referrer": LOGGED[5:],
    "clock (hour of day, time since the last click)": list(CLOCK),
    "all": [*LOGGED, *CLOCK],
}
METRICS = ("recall@20", "recall@50", "ndcg@20")
TRAINING = {
    "model": {"name": "youtube_dnn", "dim": 64},
    "sampler": {"name": "in_batch"},
    "train": {"threads": 1, "eval_users": 4000, "patience": 5},
}


def prepared(log: Path, out: Path, users: int) -> Path:
    """Prepare a sample of the users, once."""
    data = out / "data"
    if data.is_dir():
        return data
    clicks = pl.scan_parquet(log / "interactions.parquet")
    everyone = clicks.select(pl.col("user").unique().sort()).collect().to_series()
    chosen = everyone.sample(min(users, len(everyone)), seed=0)
    sample = out / "sample.parquet"
    clicks.filter(pl.col("user").is_in(chosen.implode())).collect().write_parquet(sample)
    context = tuple(Column(name, "categorical") for name in LOGGED)
    source = open_source(sample, "table", ReadOptions(context=context, clock=CLOCK))
    prepare(source, data, PrepareOptions(split="leave_last_out"))
    return data


def measured(data: Path, out: Path, seed: int, context: list[str], steps: int) -> Path:
    """Train one run, or continue it."""
    train = {**TRAINING["train"], "seed": seed, "max_steps": steps}
    # as recorded; `context_dropout` is younger
    model = {**TRAINING["model"], "context": context, "context_dropout": 0.0}
    recipe = Recipe.from_dict({**TRAINING, "model": model, "train": train})
    fit(open_dataset(data), recipe, out, resume=out.exists())
    return out


def difference(runs: list[Path], plain: list[Path], metric: str) -> tuple[float, float]:
    """Mean difference of the test users' metric, and half its 95 % interval."""
    ours, theirs = (
        np.mean([np.load(run / f"per_user/test_{metric}.npy") for run in each], axis=0)
        for each in (runs, plain)
    )
    gain = ours - theirs
    return float(gain.mean()), float(1.96 * gain.std() / np.sqrt(len(gain)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("--out", type=Path, default=Path("context"))
    parser.add_argument("--users", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = prepared(given.log, given.out, given.users)
    counts = open_dataset(data).manifest["counts"]
    print(f"{counts['users']:,} users, {counts['items']:,} items, ", end="")
    print(f"{counts['interactions']:,} clicks, {counts['test_users']:,} test users\n")
    runs: dict[str, list[Path]] = {}
    print(f"| context | {' | '.join(METRICS)} | steps |\n|---|{'---|' * (len(METRICS) + 1)}")
    for number, (arm, context) in enumerate(ARMS.items()):
        folders = [given.out / f"run-{number}-{seed}" for seed in range(given.seeds)]
        runs[arm] = [
            measured(data, folder, seed, context, given.steps)
            for seed, folder in enumerate(folders)
        ]
        results = [json.loads((run / "result.json").read_text()) for run in runs[arm]]
        cells = []
        for metric in METRICS:
            mean = np.mean([result["test"][metric] for result in results])
            gain, half = difference(runs[arm], runs["none"], metric)
            cells.append(f"{mean:.4f}" + (f" ({gain:+.4f} ± {half:.4f})" if context else ""))
        steps = ", ".join(str(result["best_step"]) for result in results)
        print(f"| {arm} | {' | '.join(cells)} | {steps} |", flush=True)


if __name__ == "__main__":
    main()
