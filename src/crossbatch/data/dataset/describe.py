"""What is in a dataset: the numbers that decide which model and sampler make sense."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from crossbatch.data.dataset.memory_mapped import Dataset

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
LENGTH_EDGES = (1, 5, 10, 20, 50, 100, 200, 500, 1000)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return counts, distributions and shares of a dataset, ready for JSON.

    Keys:
        counts: Users, items, interactions and the sizes of the splits.
        lengths: Mean and quantiles of the users' sequence lengths, and a histogram.
        popularity: How unequal the items' training frequencies are.
        cold: Items without training interactions, and how many targets they are.
        order: Share of neighbours at the same moment (ties), and of repeated items.
        time: First and last moment, or None if the log had no times.
        features: Kind, number of values and coverage of each feature.
    """
    return {
        "counts": dataset.manifest["counts"],
        "lengths": _lengths(np.diff(dataset.offsets)),
        "popularity": _popularity(dataset.item_counts[1:], dataset.sampler_law[1:]),
        "cold": _cold(dataset),
        "order": _order(dataset),
        "time": _time(dataset),
        "features": dataset.manifest["features"],
    }


def _lengths(lengths: np.ndarray) -> dict[str, Any]:
    edges = [*LENGTH_EDGES, max(int(lengths.max()) + 1, LENGTH_EDGES[-1] + 1)]
    counts, _ = np.histogram(lengths, bins=edges)
    names = [f"{low}–{high - 1}" for low, high in pairwise(edges)]
    filled = int(np.flatnonzero(counts)[-1]) + 1
    return {
        "mean": float(lengths.mean()),
        "quantiles": _quantiles(lengths),
        "histogram": dict(zip(names[:filled], counts[:filled].tolist(), strict=True)),
    }


def _popularity(counts: np.ndarray, law: np.ndarray) -> dict[str, Any]:
    ordered = np.sort(counts)[::-1].astype(np.float64)
    total = max(ordered.sum(), 1.0)
    ranks = np.arange(1, len(ordered) + 1)
    gini = float(((len(ordered) + 1 - 2 * ranks) * ordered).sum() / (total * len(ordered)))
    head = {
        f"{share:.0%}": float(ordered[: max(1, round(share * len(ordered)))].sum() / total)
        for share in (0.01, 0.1, 0.2)
    }
    return {
        "mean": float(counts.mean()),
        "quantiles": _quantiles(counts),
        "gini": gini,
        "head_shares": head,
        # two rows of a batch hold the same positive with this probability: Σ q²
        "collision": float((law**2).sum()),
        "never_positive": int((law == 0).sum()),
    }


def _cold(dataset: Dataset) -> dict[str, Any]:
    cold = dataset.item_counts == 0
    cold[0] = False
    result: dict[str, Any] = {"items": int(cold.sum()), "share": float(cold[1:].mean())}
    for split in ("valid", "test"):
        hits = total = 0
        for batch in dataset.eval_batches(split, batch_size=8192, history_length=1):
            targets = batch.target_ids.numpy()
            hits, total = hits + int(cold[targets].sum()), total + len(targets)
        result[f"{split}_targets"] = hits / max(total, 1)
    return result


def _order(dataset: Dataset) -> dict[str, float]:
    inside = np.ones(max(len(dataset.items) - 1, 0), dtype=bool)
    inside[dataset.offsets[1:-1] - 1] = False  # the step from one user to the next
    same_time = (dataset.times[1:] == dataset.times[:-1])[inside]
    owner = np.repeat(np.arange(dataset.num_users), np.diff(dataset.offsets))
    pairs = owner * (dataset.num_items + 1) + dataset.items
    return {
        "ties": float(same_time.mean()) if len(same_time) else 0.0,
        "repeats": 1.0 - len(np.unique(pairs)) / max(len(pairs), 1),
    }


def _time(dataset: Dataset) -> dict[str, str] | None:
    times = dataset.times
    first, last = int(times.min()), int(times.max())
    if last < 365 * 86_400 * 1_000_000:  # positions, not moments
        return None
    return {"first": _date(first), "last": _date(last)}


def _date(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, tz=UTC).date().isoformat()


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {
        f"{q:.0%}": float(value)
        for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
    }
