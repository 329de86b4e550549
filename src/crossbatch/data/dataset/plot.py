"""A picture of a dataset: sequence lengths, popularity, activity over time, split sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.data.dataset.memory_mapped import Dataset

INK, SECOND = "#1f4e79", "#c0504d"
DATE_FIELDS: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def draw(dataset: Dataset, path: Path) -> None:
    """Write four panels as PNG, SVG or PDF, by the file's suffix.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
    except ImportError as error:
        raise ConfigError("a picture needs matplotlib: pip install 'crossbatch[report]'") from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    _lengths(axes[0, 0], dataset)
    _popularity(axes[0, 1], dataset)
    _activity(axes[1, 0], dataset)
    _splits(axes[1, 1], dataset)
    counts = dataset.manifest["counts"]
    figure.suptitle(
        f"{dataset.path.name}: {counts['users']:,} users, {counts['items']:,} items, "
        f"{counts['interactions']:,} interactions"
    )
    figure.savefig(path, dpi=120, metadata=_no_date(path))


def _lengths(axis: Any, dataset: Dataset) -> None:
    lengths = np.maximum(np.diff(dataset.offsets), 1)
    edges = np.unique(np.round(np.geomspace(1, lengths.max() + 1, 40)))
    axis.hist(lengths, bins=edges, color=INK)
    axis.axvline(np.median(lengths), color=SECOND, label=f"median {np.median(lengths):.0f}")
    axis.set(
        xscale="log", xlabel="interactions of a user", ylabel="users", title="Sequence lengths"
    )
    axis.legend()


def _popularity(axis: Any, dataset: Dataset) -> None:
    ranks = np.unique(np.round(np.geomspace(1, dataset.num_items, 400)).astype(np.int64)) - 1
    counts = np.sort(dataset.item_counts[1:])[::-1].astype(np.float64)
    law = np.sort(dataset.sampler_law[1:])[::-1]
    axis.plot(ranks + 1, counts[ranks] / counts.sum(), color=INK, label="training frequency")
    axis.plot(ranks + 1, law[ranks], color=SECOND, linestyle="--", label="law of a batch")
    axis.set(
        xscale="log", yscale="log", xlabel="rank", ylabel="probability", title="Item popularity"
    )
    axis.legend()


def _activity(axis: Any, dataset: Dataset) -> None:
    days = dataset.times / 86_400e6
    axis.hist(1970 + days / 365.2425, bins=60, color=INK)
    axis.set(xlabel="year", ylabel="interactions", title="Activity over time")


def _splits(axis: Any, dataset: Dataset) -> None:
    counts = dataset.manifest["counts"]
    names = ("train samples", "valid targets", "test targets")
    sizes = (counts["eligible_samples"], counts["valid_targets"], counts["test_targets"])
    bars = axis.barh(names, sizes, color=(INK, SECOND, SECOND))
    axis.bar_label(bars, labels=[f"{size:,}" for size in sizes], padding=3)
    axis.set(xscale="log", title=f"Split by {dataset.manifest['options']['split']}")
    axis.invert_yaxis()
    axis.margins(x=0.3)


def _no_date(path: Path) -> dict[str, None]:
    """Leave the date out, so that equal datasets give equal files."""
    return (
        {}
        if path.suffix == ".png"
        else {"Date": None}
        if path.suffix == ".svg"
        else {"CreationDate": None}
    )
