"""Speed and memory of `recommend --users`; memory should not grow with the file.

    python benchmarks/batch_users.py BUNDLE --users 100000 1000000

Users are generated: 5 to 30 items each, drawn by popularity. Each size runs in its own process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl
import torch

from crossbatch.serving import open_bundle
from crossbatch.serving.tables import recommend_users

PIECE = 50_000


def write_users(bundle_path: Path, users: int, folder: Path) -> None:
    """Write generated users to `folder/users.parquet`, in chunks."""
    bundle = open_bundle(bundle_path, verify=False)
    keys = pl.Series(bundle.item_keys(range(bundle.num_items + 1)))
    weights = np.asarray(bundle.item_counts) / np.asarray(bundle.item_counts).sum()
    rng = np.random.default_rng(0)
    pieces = []
    for start in range(0, users, PIECE):
        count = min(PIECE, users - start)
        lengths = rng.integers(5, 31, size=count)
        items = rng.choice(len(weights), size=lengths.sum(), p=weights)
        rows = pl.DataFrame({"user": np.repeat(np.arange(start, start + count), lengths)})
        rows = rows.with_columns(keys.gather(items).alias("history"))
        pieces.append(folder / f"{start}.parquet")
        rows.group_by("user", maintain_order=True).agg("history").write_parquet(pieces[-1])
    pl.scan_parquet(pieces).sink_parquet(folder / "users.parquet")


def run(bundle_path: Path, folder: Path) -> None:
    torch.set_num_threads(1)
    bundle = open_bundle(bundle_path)
    start = time.process_time()
    tally = recommend_users(bundle, folder / "users.parquet", folder / "lists.parquet", k=20)
    spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = (folder / "lists.parquet").stat().st_size / 1e6
    print(
        f"{tally.users:>10,} users  {tally.rows:>12,} rows  {spent:8.1f} CPU s  "
        f"{tally.users / spent:8,.0f} users a CPU second  peak {peak:6,.0f} MB, "
        f"file {size:6,.0f} MB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--users", type=int, nargs="+", default=[100_000, 1_000_000])
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for users in args.users:
        with tempfile.TemporaryDirectory() as folder:
            for work in (
                context.Process(target=write_users, args=(args.bundle, users, Path(folder))),
                context.Process(target=run, args=(args.bundle, Path(folder))),
            ):
                work.start()
                work.join()
                if work.exitcode:
                    raise SystemExit(work.exitcode)


if __name__ == "__main__":
    main()
