"""What a filter costs: time of a request over a million items, by how much the filter keeps.

    python benchmarks/filters.py                # minutes; 3 GB of memory and of disk
    python benchmarks/filters.py --quick        # a smoke run: tiny sizes, numbers mean nothing

A generated bundle with exact search and one with approximate search (recall 0.99 of lists of 50),
one user at a time, 20 items, from keys to titles. Requests with and without a filter take turns.
*First* is the first request with a filter: its column is read, and what it allows is prepared. CPU
time of one thread; the median over turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from crossbatch.serving.filters import FilterColumns
from measure.machine import describe
from measure.report import header, table_line
from synthetic_bundle import cluster_history, synthetic_bundle

if TYPE_CHECKING:
    from crossbatch.serving import Bundle

SHARES = (0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9)
K, LIMIT = 20, 1.5


def measure(bundle: Bundle, turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a request without a filter, and with one that keeps each of the shares."""
    column = np.random.default_rng(0).random(bundle.num_items)
    filters: dict[str, dict[str, Any] | None] = {"none": None}
    filters |= {f"{share:g}": {"place": {"<": share}} for share in SHARES}
    spent: dict[str, list[float]] = {name: [] for name in filters}
    first: dict[str, float] = {}
    bundle.filters = FilterColumns(pl.DataFrame({"place": column}))
    for turn in range(turns + 1):
        keys = bundle.item_keys(cluster_history(bundle.num_items, turn))
        for name, conditions in filters.items():
            began = time.process_time()
            bundle.recommend([keys], K, filter=conditions)
            milliseconds = 1e3 * (time.process_time() - began)
            if turn:
                spent[name].append(milliseconds)
            else:
                first[name] = milliseconds
    medians = {name: statistics.median(values) for name, values in spent.items()}
    return {
        name: {"ms": value, "ratio": value / medians["none"], "first_ms": first[name]}
        for name, value in medians.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for filters.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    items, turns = (5_000, 3) if arguments.quick else (arguments.items, arguments.turns)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for index in ("exact", "ivf"):
            bundle = synthetic_bundle(Path(folder) / index, items, index=index)
            results[index] = measure(bundle, turns)
    for line in header("search", "filter keeps", "ms", "× no filter", "first, ms"):
        print(line)
    for index, rows in results.items():
        for name, row in rows.items():
            keeps = "no filter" if name == "none" else f"{100 * float(name):g} %"
            numbers = [f"{row['ms']:.2f}", f"{row['ratio']:.2f}", f"{row['first_ms']:.1f}"]
            print(table_line(index, keeps, *numbers))
    asked = [rows[share]["ratio"] for rows in results.values() for share in ("0.01", "0.5")]
    print(f"largest ratio at 1 % and 50 %: {max(asked):.2f} (limit {LIMIT})")
    if arguments.out is not None:
        document = {"quick": arguments.quick, "machine": describe(), "results": results}
        (arguments.out / "filters.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
