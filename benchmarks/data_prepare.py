"""Time and memory of `crossbatch prepare` against straightforward pandas, and its growth curve.

    python benchmarks/data_prepare.py                        # the full Amazon-Books shape
    python benchmarks/data_prepare.py --curve 1 3 10 30 100  # millions of interactions, ours only
    python benchmarks/data_prepare.py --curve 100 --events   # with kinds, sessions and context

Both sides run as processes of their own, in turn, so that a busy machine disturbs both alike; the
ratio is that of the medians.  pandas is installed in an environment of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
FULL = (603_668, 367_982, 8_898_041)
LOGS = {"parquet": "reviews.parquet", "json": "reviews_Books_5.json.gz"}
PANDAS = ("pandas==3.0.*", "pyarrow==26.*")


EVENT_OPTIONS = (
    *("--event", "kind", "--event-weights", "view=0,click=1,buy=5", "--session", "visit"),
    *("--context", "device:categorical", "--context", "query:text", "--context", "price:numeric"),
    *("--context", "hour_of_day", "--context", "since_last"),
)


class Cost(NamedTuple):
    """Time and memory of a process."""

    seconds: float
    cpu_seconds: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=["parquet", "json"])
    parser.add_argument("--shape", type=int, nargs=3, default=FULL, help="users items interactions")
    parser.add_argument("--curve", type=float, nargs="+", help="millions of interactions")
    parser.add_argument(
        "--events", action="store_true", help="kinds of events, sessions and context in the log"
    )
    parser.add_argument("--work", type=Path, help="where the inputs go (several GB)")
    parser.add_argument("--write", type=Path, help="only write the inputs there")
    parser.add_argument("--add-events", type=Path, help="only add columns to the log there")
    parser.add_argument("--quick", action="store_true", help="a smoke run, ours only: no numbers")
    arguments = parser.parse_args()
    if arguments.write:
        write_logs(arguments.write, arguments.shape)
        return
    if arguments.add_events:
        add_events(arguments.add_events)
        return
    if arguments.quick:
        arguments.curve = [0.02]
    with tempfile.TemporaryDirectory(prefix="crossbatch-bench-", dir=arguments.work) as folder:
        if arguments.curve:
            curve(Path(folder), arguments.curve, events=arguments.events)
        else:
            compare(Path(folder), arguments.shape, arguments.formats, arguments.repeats)


def compare(folder: Path, shape: tuple[int, int, int], formats: list[str], repeats: int) -> None:
    pandas = environment(folder / "pandas")
    # in its own process: a child's peak memory is never below its parent's at the start
    run(sys.executable, __file__, "--write", folder, "--shape", *shape)
    logs = {name: folder / LOGS[name] for name in formats}
    print("| input | tool | seconds | CPU seconds | rows/s | peak MB |\n|---|---|---|---|---|---|")
    for name, log in logs.items():
        costs: dict[str, list[Cost]] = {"crossbatch": [], "pandas": []}
        for _ in range(repeats):
            costs["crossbatch"].append(run(sys.executable, "-c", OURS, log, folder / "out"))
            costs["pandas"].append(run(pandas, HERE / "data_pandas.py", log, folder / "out"))
        for tool, found in costs.items():
            seconds, cpu, peak = (statistics.median(column) for column in zip(*found, strict=True))
            rate = shape[2] / seconds
            print(f"| {name} | {tool} | {seconds:.1f} | {cpu:.1f} | {rate:,.0f} | {peak:,.0f} |")
        pairs = zip(costs["pandas"], costs["crossbatch"], strict=True)
        ratios = [theirs.seconds / ours.seconds for theirs, ours in pairs]
        print(f"{name}: {statistics.median(ratios):.1f}× (each pair: {spread(ratios)})", flush=True)


def curve(folder: Path, millions: list[float], *, events: bool) -> None:
    print("| interactions | users | items | seconds | rows/s | peak MB | log on disk, MB |")
    print("|---|---|---|---|---|---|---|")
    for size in millions:
        interactions = int(size * 1e6)
        users, items = min(interactions // 15, 2_000_000), min(interactions // 24, 500_000)
        raw = folder / "raw"
        run(sys.executable, "-c", RAW, users, items, interactions, raw)
        disk = sum(file.stat().st_size for file in raw.rglob("*.parquet")) / 2**20
        if events:
            run(sys.executable, __file__, "--add-events", raw / "interactions")
            disk = sum(file.stat().st_size for file in raw.rglob("*.parquet")) / 2**20
        options = EVENT_OPTIONS if events else ()
        prepare = ("-m", "crossbatch", "prepare", raw / "interactions", *options, "--quiet")
        cost = run(sys.executable, *prepare, "--out", folder / "out")
        shutil.rmtree(raw)
        rate = interactions / cost.seconds
        print(
            f"| {interactions:,} | {users:,} | {items:,} | {cost.seconds:.1f} | {rate:,.0f} "
            f"| {cost.peak_mb:,.0f} | {disk:,.0f} |",
            flush=True,
        )


OURS = """
import sys
from pathlib import Path
from crossbatch.data.prepare import prepare
from crossbatch.data.readers import open_source
prepare(open_source(sys.argv[1]), sys.argv[2])
"""
RAW = """
import sys
from pathlib import Path
from crossbatch.data.synthetic import SynthOptions, write_raw
write_raw(SynthOptions(*map(int, sys.argv[1:4])), Path(sys.argv[4]))
"""


def run(*command: object) -> Cost:
    """Run a process, remove its output folder and return its time and memory."""
    start = time.perf_counter()
    process = subprocess.Popen([str(part) for part in command])
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{command[-1]}: exit status {os.waitstatus_to_exitcode(status)}")
    if Path(str(command[-1])).name == "out":
        shutil.rmtree(str(command[-1]))
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def write_logs(folder: Path, shape: tuple[int, int, int]) -> None:
    """Write the log as Amazon lays it out: grouped by item; Parquet and gzipped JSON lines."""
    import gzip

    import polars as pl

    from crossbatch.data.readers.source import Tally
    from crossbatch.data.synthetic import SynthOptions, synthetic_source

    log = pl.concat(list(synthetic_source(SynthOptions(*shape)).batches(Tally())))
    log = log.sort("item", maintain_order=True).rename(
        {"user": "reviewerID", "item": "asin", "time": "unixReviewTime"}
    )
    log.write_parquet(folder / LOGS["parquet"])
    summaries = np.array(["Good", "I liked it a lot", "Not what I hoped for", "Four stars"])
    with gzip.open(folder / LOGS["json"], "wb", compresslevel=1) as file:
        for part in log.iter_slices(500_000):
            full = part.with_columns(
                pl.lit(5.0).alias("overall"),
                pl.Series("summary", summaries[np.arange(len(part)) % len(summaries)]),
                pl.lit("A reader, as so many").alias("reviewerName"),
                pl.lit("07 21, 2014").alias("reviewTime"),
            )
            file.write(full.write_ndjson().encode())


def add_events(folder: Path) -> None:
    """Add kinds of events, sessions and context to a log, file by file."""
    import polars as pl

    words = np.array(["red", "blue", "new", "used", "small", "large", "cheap", "best", "kids"])
    queries = np.array([f"{a} {b} {c} shoes" for a in words for b in words for c in words])
    rng = np.random.default_rng(0)
    for file in sorted(folder.glob("*.parquet")):
        log = pl.read_parquet(file)
        n = len(log)
        kinds = np.array(["view", "click", "buy"])[rng.choice(3, n, p=[0.6, 0.35, 0.05])]
        devices = np.array(["phone", "tablet", "desktop", "tv"])[rng.choice(4, n)]
        log.with_columns(
            pl.Series("kind", kinds),
            pl.concat_str("user", pl.col("timestamp") // 86_400, separator="-").alias("visit"),
            pl.Series("device", devices),
            pl.Series("query", queries[rng.integers(len(queries), size=n)]),
            pl.Series("price", rng.lognormal(3, 1, n)),
        ).write_parquet(file)


def environment(folder: Path) -> Path:
    """Make an environment with pandas and return its Python."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", *PANDAS], check=True)
    return python


def spread(values: list[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in sorted(values))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
