"""Does a daily warm start keep up with training from scratch every day, and what does it cost?

    python benchmarks/daily.py globo_news --data DATA --work WORK       # resumable; one thread
    python benchmarks/daily.py globo_news --data DATA --work WORK --moments       # and --seed
    python benchmarks/daily.py --draw                                   # the figure and the tables

`DATA` has the folders `globo_news`, `ml-1m` and `amazon2014-book-1m`. A log is cut into days: those
of the calendar for `globo_news`; for the other two, windows of equally many interactions that are
given dates of their own. Day by day the dataset grows (`append`), and three models are tested on
the day that follows their training data, all items ranked, items of the history left out:

- *scratch*: trained anew on all days, three passes;
- *warm*: yesterday's warm model, trained on with one pass over the newest three days, so that every
  interaction takes part three times as well;
- *stale*: the model of the first day, which never sees another one.

*popular* has the most chosen items of the day before, for scale. Times are processor seconds of
training with its evaluations, on one thread. Records are kept in `results/daily`.

With `--moments` two chains of warm starts are compared, from the same first model: one whose
optimiser starts anew every day, and one that takes the moments of the day before along.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch import fit
from crossbatch.config import Recipe
from crossbatch.data import Column, append, open_dataset, open_source, prepare
from crossbatch.data.prepare.options import PrepareOptions
from crossbatch.data.readers.source import ReadOptions
from crossbatch.evaluation.metrics import ndcg, recall
from crossbatch.serving.from_run import open_recommender

if TYPE_CHECKING:
    from crossbatch.data import Dataset

RECORDS = Path(__file__).parents[1] / "results" / "daily"
FIGURE = Path(__file__).parents[1] / "docs" / "results" / "daily.svg"
DAY = 86_400 * 1_000_000
K, TEST_USERS, PASSES, NEWEST_DAYS = 20, 5_000, 3, 3
SEEN = 1_000  # most recent items of a user that are left out of the lists
FEATURES = {"globo_news": ("category_id", "publisher_id"), "ml-1m": ("genres",)}
WINDOWS = {"ml-1m": 50, "amazon2014-book-1m": 25}
TITLES = {
    "globo_news": "globo_news: calendar days, one user in 12",
    "ml-1m": "ml-1m: windows of 2 % of the log",
    "amazon2014-book-1m": "book-1m: windows of 4 % of the log",
}
RECIPE: dict[str, Any] = {
    "model": {
        "name": "youtube_dnn",
        "dim": 64,
        "tower": {"pooling": "recency"},
    },
    "sampler": {"name": "cross_batch", "capacity": 2048, "item_gradient": "balanced"},
    "train": {"batch_size": 256, "threads": 1, "eval_users": 1000},
}


def read_days(name: str, data: Path, *, quick: bool) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """The log (user, item, time in microseconds, day) and the content of its items."""
    folder = data / name
    if name == "ml-1m":
        log, items = _movielens(folder / "ml-1m.zip")
    else:
        log = pl.read_parquet(folder / "interactions.parquet")
        items = pl.read_parquet(folder / "items.parquet") if name in FEATURES else None
    if name == "globo_news":
        day = (pl.col("timestamp") // 86_400_000).alias("day")
        # the last days have a handful of clicks; one user in twelve, to spare processor time
        log = log.with_columns(day, time=pl.col("timestamp") * 1000)
        last = log["day"].min() + 16  # type: ignore[operator]
        log = log.filter((pl.col("day") < last) & (pl.col("user").hash(0) % 12 == 0))
        first = 5
    else:
        # of ml-1m most users are there for one day only: returning ones are at the end of the log
        windows = WINDOWS[name]
        log, first = _windows(log, windows), windows - 12
    log = log.with_columns(day=pl.col("day") - pl.col("day").min())
    log = log.filter(pl.col("day") >= 0).with_columns(
        day=(pl.col("day") - first).clip(lower_bound=0)
    )
    if quick:
        log = log.filter((pl.col("day") < 3) & (pl.col("user").hash(1) % 20 == 0))
    return log.select("user", "item", "time", "day"), items


def _windows(log: pl.DataFrame, windows: int) -> pl.DataFrame:
    """Windows of about equally many interactions, each given a day; ties stay ties."""
    times = log["timestamp"].to_numpy()
    borders = np.quantile(times, np.arange(1, windows) / windows, method="nearest")
    log = log.with_columns(day=pl.Series(np.searchsorted(borders, times, side="right")))
    place = pl.col("timestamp").rank("dense").over("day").cast(pl.Int64)
    return log.with_columns(time=(pl.col("day") + 15_000) * DAY + place)


def _movielens(path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    import io
    import zipfile

    def table(archive: zipfile.ZipFile, name: str, columns: list[str]) -> pl.DataFrame:
        text = archive.read(next(each for each in archive.namelist() if each.endswith(name)))
        lines = text.decode("latin-1").replace("::", "\t")
        return pl.read_csv(
            io.StringIO(lines),
            separator="\t",
            has_header=False,
            new_columns=columns,
            quote_char=None,
        )

    with zipfile.ZipFile(path) as archive:
        log = table(archive, "ratings.dat", ["user", "item", "rating", "timestamp"])
        return log, table(archive, "movies.dat", ["item", "title", "genres"])


def datasets(name: str, data: Path, work: Path, *, quick: bool) -> int:
    """Write `day-0`, `day-1`, …: datasets up to and including that day; return how many."""
    log, items = read_days(name, data, quick=quick)
    last = int(log["day"].max())  # type: ignore[arg-type]
    columns = tuple(
        Column(each, "multi_valued", "|") if each == "genres" else Column(each, "categorical")
        for each in FEATURES.get(name, ())
    )
    for day in range(last + 1):
        out = work / f"day-{day}"
        if out.exists():
            continue
        file = work / f"log-{day}.parquet"
        rows = log.filter(pl.col("day") == day)
        rows.select("user", "item", "time").write_parquet(file)
        table = None
        if items is not None:
            table = work / f"items-{day}.parquet"
            items.filter(pl.col("item").is_in(rows["item"].unique().implode())).write_parquet(table)
        options = ReadOptions(
            "user", "item", "time", time_unit="us", items=table, item_columns=columns
        )
        source = open_source(file, "table", options)
        if day:
            append(source, work / f"day-{day - 1}", out)
        else:
            chosen = PrepareOptions(1, 1, split="day", growing=True, valid_share=0.2)
            prepare(source, out, chosen)
    return last + 1


def trained(dataset: Dataset, out: Path, start: Path | None, **train: Any) -> float:
    """Train, from scratch or from an earlier run, with keys of `[train]`; processor seconds."""
    newest = 0.0 if start is None else float(NEWEST_DAYS)
    passes = PASSES if start is None else 1
    steps = max(
        4, math.ceil(passes * dataset.num_samples(1, newest) / RECIPE["train"]["batch_size"])
    )
    every = math.ceil(steps / 4)
    changes = {"max_steps": 4 * every, "eval_every": every, "newest_days": newest}
    if start is not None:
        changes["lr"] = 0.001
    changes |= train
    sampler = RECIPE["sampler"] | {"warmup_steps": every}
    recipe = Recipe.from_dict(RECIPE | {"sampler": sampler, "train": RECIPE["train"] | changes})
    shutil.rmtree(out, ignore_errors=True)
    began = time.process_time()
    fit(dataset, recipe, out, test=False, start_from=start)
    return time.process_time() - began


def tested(run: Path, dataset: Dataset) -> dict[str, float]:
    """Recall and NDCG on the test day of a dataset, which may be later than the run's own."""
    recommender = open_recommender(run)
    ranked, targets = [], []
    for batch in dataset.eval_batches("test", history_length=SEEN, max_users=TEST_USERS):
        # old items keep their ids when days are appended; newer ones are unknown to the model
        histories = [
            row[(row > 0) & (row <= recommender.num_items)] for row in batch.history.numpy()
        ]
        ranked.append(recommender.rank(histories, K).top.item_ids)
        targets += [each.tolist() for each in batch.targets]
    return measured(torch.cat(ranked), targets)


def popular(dataset: Dataset) -> dict[str, float]:
    """The same of the items that were chosen most on the last day before the test day."""
    samples = dataset.samples(1, newest_days=1.0)
    spans = zip(samples.firsts.tolist(), samples.ends.tolist(), strict=True)
    chosen = np.concatenate([dataset.items[first:end] for first, end in spans])
    counts = np.bincount(chosen, minlength=dataset.num_items + 1)
    best = np.argsort(-counts, kind="stable")[: SEEN + K].tolist()
    ranked, targets = [], []
    for batch in dataset.eval_batches("test", history_length=SEEN, max_users=TEST_USERS):
        seen = [set(row.tolist()) for row in batch.history]
        ranked += [[item for item in best if item not in row][:K] for row in seen]
        targets += [each.tolist() for each in batch.targets]
    return measured(torch.tensor(ranked), targets)


def measured(ranked: torch.Tensor, targets: list[list[int]]) -> dict[str, float]:
    values = {f"recall@{K}": recall(ranked, targets, K), f"ndcg@{K}": ndcg(ranked, targets, K)}
    return {name: float(value.mean()) for name, value in values.items()} | {"users": len(targets)}


def study(name: str, data: Path, work: Path, record: Path, *, quick: bool) -> None:
    """Train and test every day; days that the record has are left out."""
    work.mkdir(parents=True, exist_ok=True)
    record.parent.mkdir(parents=True, exist_ok=True)
    days = datasets(name, data, work, quick=quick)
    found = json.loads(record.read_text()) if record.exists() else {"quick": quick, "days": []}
    for day in range(len(found["days"]), days):
        dataset = open_dataset(work / f"day-{day}")
        line: dict[str, Any] = {
            "samples": dataset.num_samples(),
            "items": dataset.num_items,
            "popular": popular(dataset),
        }
        previous = work / f"warm-{day - 1}"
        for kind in ("scratch", "warm"):
            run = work / (f"warm-{day}" if kind == "warm" else f"scratch-{day}")
            if day == 0 and kind == "warm":
                shutil.rmtree(run, ignore_errors=True)
                shutil.copytree(work / "scratch-0", run)
                line["warm"] = line["scratch"]
                continue
            seconds = trained(dataset, run, previous if kind == "warm" else None)
            line[kind] = tested(run, dataset) | {"cpu_seconds": seconds}
        line["stale"] = tested(work / "warm-0", dataset)
        found["days"].append(line)
        record.write_text(json.dumps(found, indent=1) + "\n")
        if day > 1:
            shutil.rmtree(previous)
        if day:
            shutil.rmtree(work / f"scratch-{day}")
        shown = {kind: round(line[kind][f"recall@{K}"], 4) for kind in KINDS}
        print(name, day, line["samples"], shown, _times(line), flush=True)


def moments_study(name: str, data: Path, work: Path, record: Path, seed: int) -> None:
    """Warm starts with and without the moments of the day before, every day; adds to the record."""
    work.mkdir(parents=True, exist_ok=True)
    record.parent.mkdir(parents=True, exist_ok=True)
    days, chains = datasets(name, data, work, quick=False), {}
    lines: list[dict[str, Any]] = []
    for day in range(days):
        dataset, line = open_dataset(work / f"day-{day}"), {}
        for kind in MOMENTS:
            run = work / f"{kind}-{seed}-{day}"
            start = chains.get(kind)
            if day == 0:
                run = work / f"first-{seed}"
                if not (run / "result.json").exists():
                    trained(dataset, run, None, moments="save", seed=seed)
                chains[kind] = run
                continue
            seconds = trained(dataset, run, start, moments=kind, seed=seed)
            size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
            line[kind] = tested(run, dataset) | {"cpu_seconds": seconds, "bytes": size}
            if day > 1:
                shutil.rmtree(start)
            chains[kind] = run
        if day:
            lines.append(line)
            shown = {kind: round(line[kind][f"recall@{K}"], 4) for kind in MOMENTS}
            print(name, seed, day, shown, flush=True)
    found = json.loads(record.read_text()) if record.exists() else {}
    found.setdefault(name, {})[str(seed)] = lines
    record.write_text(json.dumps(found, indent=1) + "\n")


def moments_table(record: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Means over all days and seeds."""
    lines = [
        f"| data | seeds × days | moments | recall@{K} | NDCG@{K} | MB a run |",
        "|---|---|---|---|---|---|",
    ]
    for name, seeds in record.items():
        days = [line for found in seeds.values() for line in found]
        for kind in MOMENTS:
            rows = [day[kind] for day in days]
            recalls, ndcgs = (
                100 * np.array([row[f"{metric}@{K}"] for row in rows])
                for metric in ("recall", "ndcg")
            )
            size = np.mean([row["bytes"] for row in rows]) / 1e6
            shape = f"{len(seeds)} × {len(days) // len(seeds)}"
            lines.append(
                f"| {name} | {shape} | {kind} | {recalls.mean():.2f} % | {ndcgs.mean():.2f} % "
                f"| {size:.1f} |"
            )
    return "\n".join(lines)


KINDS = ("scratch", "warm", "stale", "popular")
MOMENTS = ("anew", "keep")


def _times(line: dict[str, Any]) -> dict[str, float]:
    return {kind: round(line[kind]["cpu_seconds"], 1) for kind in ("scratch", "warm")}


def table(records: dict[str, list[dict[str, Any]]]) -> str:
    """Means over all days but the first, which is the same for all models."""
    lines = [
        f"| data | days | model | recall@{K} | NDCG@{K} | recall@{K}, last day | CPU seconds/day |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, days in records.items():
        for kind in KINDS:
            rows = [day[kind] for day in days[1:]]
            means = [
                100 * np.mean([row[f"{metric}@{K}"] for row in rows])
                for metric in ("recall", "ndcg")
            ]
            spent = "0"
            if kind in ("scratch", "warm"):
                spent = f"{np.mean([row['cpu_seconds'] for row in rows]):.1f}"
            last = 100 * rows[-1][f"recall@{K}"]
            lines.append(
                f"| {name} | {len(rows)} | {kind} | {means[0]:.2f} % | {means[1]:.2f} % "
                f"| {last:.2f} % | {spent} |"
            )
    return "\n".join(lines)


def draw(records: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Recall by day, a panel for each data set."""
    from matplotlib.figure import Figure

    colors = {"scratch": "#8a6d00", "warm": "#2f6fb7", "stale": "#b3402f", "popular": "#888888"}
    figure = Figure(figsize=(4 * len(records), 3.2), layout="constrained")
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for axes, (name, days) in zip(panels, records.items(), strict=True):
        for kind in KINDS:
            values = [100 * day[kind][f"recall@{K}"] for day in days]
            style = "--" if kind == "popular" else "-"
            axes.plot(range(len(days)), values, style, color=colors[kind], label=kind, marker=".")
        axes.set_title(TITLES[name], fontsize=9)
        axes.set_xlabel("days after the first model")
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel(f"recall@{K} of the next day, %")
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", choices=TITLES)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--work", type=Path, default=Path("daily-work"))
    parser.add_argument("--out", type=Path, default=RECORDS)
    parser.add_argument("--draw", action="store_true", help="only write the figure and the table")
    parser.add_argument("--moments", action="store_true", help="compare optimisers' starts alone")
    parser.add_argument("--seed", type=int, default=0, help="of --moments")
    parser.add_argument("--quick", action="store_true", help="a smoke run: numbers mean nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    moments = arguments.out / "moments.json"
    if arguments.draw:
        files = {name: arguments.out / f"{name}.json" for name in TITLES}
        records = {
            name: json.loads(file.read_text())["days"]
            for name, file in files.items()
            if file.exists()
        }
        draw(records, FIGURE if arguments.out == RECORDS else arguments.out / "daily.svg")
        print(table(records))
        if moments.exists():
            print(moments_table(json.loads(moments.read_text())))
        return
    if arguments.name is None or arguments.data is None:
        parser.error("name a data set and its --data, or pass --draw")
    name, work = arguments.name, arguments.work / arguments.name
    if arguments.moments:
        moments_study(name, arguments.data, work, moments, arguments.seed)
    else:
        record = arguments.out / f"{name}.json"
        study(name, arguments.data, work, record, quick=arguments.quick)


if __name__ == "__main__":
    main()
