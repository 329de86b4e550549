"""What a filter costs: time of a request over a million items, by how much the filter keeps.

    python benchmarks/filters.py                # minutes; 3 GB of memory and of disk
    python benchmarks/filters.py --quick        # a smoke run: tiny sizes, numbers mean nothing

A generated bundle with exact search and one with approximate search (recall 0.99 of lists of 50),
one user at a time, 20 items, from keys to titles. Requests without a filter, with one that was seen
before, and with one that is *new* take turns. The columns are a number and a string of a hundred
values; a first request that prepares them is not counted. CPU time of one thread; the median over
turns.
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

SHARES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9)
K, LIMIT, VALUES = 20, 1.5, 100


def filter_of(share: float, turn: int) -> dict[str, Any]:
    """A filter that keeps about a share of the items: up to ten strings, or a range of numbers."""
    wanted = round(share * VALUES)
    if turn % 2 and 0 < wanted <= 10:
        return {"word": [f"word {(turn + place) % VALUES}" for place in range(wanted)]}
    return {"place": {"<": share * (1 + 1e-4 * turn)}}


def measure(bundle: Bundle, turns: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a request without a filter, and with one that keeps each of the shares."""
    generator = np.random.default_rng(0)
    words = pl.Series([f"word {number}" for number in range(VALUES)])
    columns = {
        "place": generator.random(bundle.num_items),
        "word": words[generator.integers(VALUES, size=bundle.num_items)],
    }
    bundle.filters = FilterColumns(pl.DataFrame(columns))
    asked: dict[str, list[float]] = {"none": []}
    for share in SHARES:
        asked |= {f"{share:g}": [], f"{share:g} new": []}
    for turn in range(turns + 1):
        keys = bundle.item_keys(cluster_history(bundle.num_items, turn))
        for name, spent in asked.items():
            share, _, new = name.partition(" ")
            conditions = None
            if name != "none":
                conditions = filter_of(float(share), turn + 1 if new else turn % 2)
            began = time.process_time()
            bundle.recommend([keys], K, filter=conditions)
            if turn > 1:  # both filters that come again were there before
                spent.append(1e3 * (time.process_time() - began))
    medians = {name: statistics.median(spent) for name, spent in asked.items()}
    return {
        name: {"ms": value, "ratio": value / medians["none"]} for name, value in medians.items()
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
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for index in ("exact", "ivf"):
            bundle = synthetic_bundle(Path(folder) / index, items, index=index)
            results[index] = measure(bundle, turns)
    for line in header("search", "filter keeps", "ms", "× no filter", "new filter, ms", "×"):
        print(line)
    for index, rows in results.items():
        print(table_line(index, "no filter", f"{rows['none']['ms']:.2f}", "1.00", "", ""))
        for share in SHARES:
            seen, new = rows[f"{share:g}"], rows[f"{share:g} new"]
            numbers = [each[key] for each in (seen, new) for key in ("ms", "ratio")]
            print(table_line(index, f"{100 * share:g} %", *(f"{each:.2f}" for each in numbers)))
    for kind in ("", " new"):
        asked = [
            rows[f"{share}{kind}"]["ratio"] for rows in results.values() for share in (0.01, 0.5)
        ]
        print(f"largest ratio at 1 % and 50 %{kind}: {max(asked):.2f} (limit {LIMIT})")
    if arguments.out is not None:
        document = {"quick": arguments.quick, "machine": describe(), "results": results}
        arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "filters.json").write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
