"""What is in a dataset, as numbers (`describe`) and as a picture (`plot`)."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from crossbatch.data.dataset.arrays import range_positions
from crossbatch.errors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crossbatch.data.dataset.memory_mapped import Dataset

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
INK, SECOND = "#1f4e79", "#c0504d"
# equal datasets give equal files
NO_DATE: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
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
    facts = _read(dataset)
    return {
        "counts": dataset.manifest["counts"],
        "lengths": _lengths(facts.lengths),
        "popularity": _popularity(dataset.item_counts[1:], dataset.sampler_law[1:]),
        "cold": _cold(dataset),
        "order": facts.order,
        "time": _time(facts),
        "features": dataset.manifest["features"],
    }


def plot(dataset: Dataset, path: Path | str) -> None:
    """Write four panels as PNG, SVG or PDF, by the file's suffix."""
    with needs_extra("report", "a picture"):
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
    figure = Figure(figsize=(10, 7), layout="constrained")
    panels = (_plot_lengths, _plot_popularity, _plot_activity, _plot_splits)
    for axis, draw in zip(figure.subplots(2, 2).flat, panels, strict=True):
        draw(axis, dataset)
    counts = dataset.manifest["counts"]
    figure.suptitle(
        f"{dataset.path.name}: {counts['users']:,} users, {counts['items']:,} items, "
        f"{counts['interactions']:,} interactions"
    )
    figure.savefig(path, dpi=120, metadata=NO_DATE.get(Path(path).suffix))


def _plot_lengths(axis: Any, dataset: Dataset) -> None:
    lengths = np.maximum(_read(dataset).lengths, 1)
    edges = np.unique(np.round(np.geomspace(1, lengths.max() + 1, 40)))
    axis.hist(lengths, bins=edges, color=INK)
    axis.axvline(np.median(lengths), color=SECOND, label=f"median {np.median(lengths):.0f}")
    axis.set(
        xscale="log", xlabel="interactions of a user", ylabel="users", title="Sequence lengths"
    )
    axis.legend()


def _plot_popularity(axis: Any, dataset: Dataset) -> None:
    ranks = np.unique(np.round(np.geomspace(1, dataset.num_items, 400)).astype(np.int64)) - 1
    counts = np.sort(dataset.item_counts[1:])[::-1].astype(np.float64)
    positives = np.sort(dataset.sampler_law[1:])[::-1]
    axis.plot(ranks + 1, counts[ranks] / counts.sum(), color=INK, label="training frequency")
    axis.plot(ranks + 1, positives[ranks], color=SECOND, linestyle="--", label="batch positives")
    axis.set(
        xscale="log", yscale="log", xlabel="rank", ylabel="probability", title="Item popularity"
    )
    axis.legend()


def _plot_activity(axis: Any, dataset: Dataset) -> None:
    times = np.concatenate([times for _, _, times in _sequences(dataset)])
    axis.hist(1970 + times / 86_400e6 / 365.2425, bins=60, color=INK)
    axis.set(xlabel="year", ylabel="interactions", title="Activity over time")


def _plot_splits(axis: Any, dataset: Dataset) -> None:
    counts = dataset.manifest["counts"]
    names = ("train samples", "valid targets", "test targets")
    sizes = (counts["eligible_samples"], counts["valid_targets"], counts["test_targets"])
    bars = axis.barh(names, sizes, color=(INK, SECOND, SECOND))
    axis.bar_label(bars, labels=[f"{size:,}" for size in sizes], padding=3)
    axis.set(xscale="log", title=f"Split by {dataset.manifest['options']['split']}")
    axis.invert_yaxis()
    axis.margins(x=0.3)


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


def _popularity(counts: np.ndarray, probabilities: np.ndarray) -> dict[str, Any]:
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
        "collision": float((probabilities**2).sum()),
        "never_positive": int((probabilities == 0).sum()),
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


def _sequences(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield offsets, items and times of sequences, those of each user once.

    Of a dataset in shards those of evaluation, then the training parts of other users.
    """
    yield dataset.offsets, dataset.items, dataset.times
    evaluated = np.diff(dataset.offsets) > 0
    for shard in dataset.shards.each() if dataset.shards is not None else ():
        events, new = shard.events, ~evaluated[shard.users]
        starts, ends = events.offsets[:-1][new], events.offsets[1:][new]
        positions, offsets = range_positions(starts, ends)
        yield offsets, events.items[positions], events.times[positions]


class _Facts(NamedTuple):
    """What one pass over the sequences tells."""

    lengths: np.ndarray  # [U] items of each user
    order: dict[str, float]
    first: int  # moments, in microseconds
    last: int


def _read(dataset: Dataset) -> _Facts:
    lengths, moments = [], []
    ties = steps = distinct = total = 0
    for offsets, items, times in _sequences(dataset):
        lengths.append(np.diff(offsets))
        moments += [int(times.min()), int(times.max())] if len(times) else []
        inside = np.ones(max(len(items) - 1, 0), dtype=bool)
        bounds = offsets[1:-1]
        # the step from one user to the next
        inside[bounds[(bounds > 0) & (bounds < len(items))] - 1] = False
        same_time = (times[1:] == times[:-1])[inside]
        ties, steps = ties + int(same_time.sum()), steps + len(same_time)
        owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        pairs = owner * (dataset.num_items + 1) + items
        distinct, total = distinct + len(np.unique(pairs)), total + len(pairs)
    whole = np.concatenate(lengths)
    if dataset.shards is not None:  # without users that have no part in it
        whole = whole[whole > 0]
    order = {"ties": ties / steps if steps else 0.0, "repeats": 1.0 - distinct / max(total, 1)}
    return _Facts(whole, order, min(moments), max(moments))


def _time(facts: _Facts) -> dict[str, str] | None:
    if facts.last < 365 * 86_400 * 1_000_000:  # positions, not moments
        return None
    moments = {"first": facts.first, "last": facts.last}
    return {
        name: datetime.fromtimestamp(time / 1e6, tz=UTC).date().isoformat()
        for name, time in moments.items()
    }


def _quantiles(values: np.ndarray) -> dict[str, float]:
    return {
        f"{q:.0%}": float(value)
        for q, value in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)
    }
