"""Many varied requests to one server, and its memory meanwhile: `serving.py --soak 1000000`.

The requests differ in every way that a cache could hold on to: histories of 0 to 100 items, some
unknown; lists of 1 to 60; filters, nearly all of them new to the server; candidates, items to leave
out, explanations, similar items, searches for titles; and one in twenty is refused.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import uvloop

from http_load import at_once, get, post
from synthetic_bundle import cluster_history, synthetic_bundle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ITEMS = 70_000  # more than the server keeps as JSON
REQUESTS = 40_000  # different ones, again and again
SECONDS = 10.0  # between two looks at the memory; connections are then opened anew
WARM = 100_000  # requests after which the memory should not grow any more
BAD = (
    post("/recommend", b'{"history": ["b1"], "k": 0}'),
    post("/recommend", b'{"history": ["b1"], "size": 3}'),
    post("/recommend", b'{"history": "b1"}'),
    post("/recommend", b"{not JSON"),
    post("/recommend", b'{"history": ["b1"], "filter": {"colour": "red"}}'),
    post("/recommend", b'{"history": ["b1"], "user_features": {"age": 3}}'),
    post("/nowhere", b"{}"),
    get("/similar?id=nothing"),
    get("/items?limit=1000000"),
)


def soak_bundle(folder: Path, items: int) -> None:
    """A bundle with a column of numbers and one of words."""
    generator = np.random.default_rng(0)
    words = pl.Series([f"word {number}" for number in range(100)])
    columns = {"place": generator.random(items), "word": words[generator.integers(100, size=items)]}
    synthetic_bundle(folder, items, filters=pl.DataFrame(columns))


def varied_requests(items: int, count: int) -> list[bytes]:
    """So many requests, most of them histories of clusters as in `serving.py`."""
    generator = np.random.default_rng(1)
    requests = []
    for number in range(count):
        kind = generator.random()
        if kind < 0.05:
            requests.append(BAD[number % len(BAD)])
        elif kind < 0.055:
            requests.append(get(f"/similar?id=b{generator.integers(1, items)}&k=5"))
        elif kind < 0.056:
            requests.append(get(f"/items?search=shadow+{generator.integers(1, items)}"))
        else:
            requests.append(post("/recommend", json.dumps(_query(generator, items)).encode()))
    return requests


def _query(generator: np.random.Generator, items: int) -> dict[str, Any]:
    length = int(generator.integers(0, 100)) if generator.random() < 0.2 else 20
    history = cluster_history(items, int(generator.integers(1 << 30)), max(1, length))[:length]
    query: dict[str, Any] = {
        "history": [f"b{item}" for item in history],
        "k": int(generator.choice([5, 20, 60], p=[0.02, 0.96, 0.02])),
    }
    kind = generator.random()
    if kind < 0.01:
        query["filter"] = {"place": {"<": float(generator.uniform(0.05, 1.0))}}
    elif kind < 0.012:
        query["filter"] = {"word": [f"word {word}" for word in generator.integers(100, size=5)]}
    elif kind < 0.015:
        query["candidates"] = [f"b{item}" for item in generator.integers(1, items, 200)]
    elif kind < 0.1:
        query["exclude"] = [f"b{item}" for item in generator.integers(1, items, 10)]
    elif kind < 0.105:
        query["explain"] = True
    elif kind < 0.135:
        query["history"].append(f"unknown {generator.integers(1 << 30)}")
    return query


def soak(port: int, resident_mb: Callable[[], float], total: int, items: int) -> dict[str, Any]:
    """Send `total` requests as fast as they are answered; return memory by number of answers."""
    requests, statuses, lost = varied_requests(items, min(REQUESTS, total)), Counter[int](), 0
    memory = [(0, round(resident_mb(), 1))]
    began, done = time.perf_counter(), 0
    print("  answers     MB  answers/s   load")
    while done < total:
        first = done % len(requests)
        load = uvloop.run(at_once(port, requests[first:] + requests[:first], seconds=SECONDS))
        statuses.update(load.statuses)
        lost += load.lost
        done = sum(statuses.values())
        memory.append((done, round(resident_mb(), 1)))
        print(
            f"{done:>9,} {memory[-1][1]:>6} {len(load.latencies) / load.seconds:>10.0f}"
            f" {os.getloadavg()[0]:>6.1f}",
            flush=True,
        )
    warm = next((mb for answers, mb in memory if answers >= min(WARM, total)), memory[-1][1])
    print(f"statuses {dict(sorted(statuses.items()))}, lost {lost}")
    print(f"memory {warm} MB after {WARM:,} answers, {memory[-1][1]} MB after {done:,}")
    return {
        "answers": done,
        "seconds": round(time.perf_counter() - began),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "lost": lost,
        "memory": memory,
    }
