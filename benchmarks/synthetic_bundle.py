"""Generates a bundle of any size, to measure how fast answers are.

Items lie in clusters, as trained ones do, and a history is drawn from few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from crossbatch.config import ModelConfig, build
from crossbatch.models import MODELS, ItemTower, TwoTower
from crossbatch.progress import silent
from crossbatch.serving.bundle.model_files import split_state
from crossbatch.serving.bundle.writing import Contents, IndexPlan, Probe, write_bundle

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from crossbatch.serving import Bundle

HISTORY = 20
PROBES = 64
WORDS = tuple(
    "Silver Golden River Letter Harbour Season Winter Garden Stranger Daughter Kingdom Shadow "  # noqa: SIM905
    "Secret Light House Road Night Dream Stone Fire Bridge Mirror Island Storm Lantern".split()
)


def synthetic_bundle(
    folder: Path,
    items: int,
    *,
    model: str = "youtube_dnn",
    dim: int = 64,
    index: str = "auto",
    seed: int = 0,
    filters: pl.DataFrame | None = None,
) -> Bundle:
    """Write a bundle with keys "b1" …, titles of about 40 letters and counts by Zipf's law.

    `filters` are columns that requests may filter by, a row for each item.
    """
    torch.manual_seed(seed)
    config = ModelConfig(
        name=model,
        dim=dim,
        history="id",
        normalize=False,
        item_features=(),
        user_features=(),
        context=(),
    )
    vectors = _clustered(items, dim)
    towers = TwoTower(ItemTower(items, dim), build(MODELS, "model", {"name": model}, dim)).eval()
    state = towers.state_dict() | {"item_tower.table.weight": vectors}
    if model == "youtube_dnn":  # a user is the mean of the history, in the items' own space
        state["user_tower.layers.0.weight"] = torch.eye(dim)
    towers.load_state_dict(state)
    with torch.no_grad():
        history = torch.tensor([cluster_history(items, user) for user in range(PROBES)])
        probe = Probe(history, None, towers.users(history))
    item_state, user_state = split_state(towers)
    counts = np.concatenate([[0], 1e6 / np.arange(1, items + 1)]).astype(np.int64)
    contents = Contents(
        name=f"synthetic-{items}",
        config=config,
        history_length=HISTORY,
        metrics={},
        keys=["", *(f"b{number}" for number in range(1, items + 1))],
        titles=["", *_titles(items, np.random.default_rng(seed))],
        counts=counts,
        vectors=vectors,
        history_vectors=None,
        item_state=item_state,
        user_state=user_state,
        trained=items,
        features=folder,
        origin={"sampler": "none", "best_step": 0},
        filters=filters,
    )
    return write_bundle(
        folder,
        contents,
        probe,
        IndexPlan(index),
        graph_formats=(),
        overwrite=False,
        progress=silent,
    )


def cluster_history(items: int, user: int, length: int = HISTORY) -> list[int]:
    """Item ids of a made-up user who likes three clusters."""
    rng = np.random.default_rng(user)
    clusters = rng.choice(_num_clusters(items), size=3)
    members = rng.choice(clusters, size=length)
    places = (members + _num_clusters(items) * rng.integers(0, 32, length)) % items
    return [1 + int(place) for place in places]


def _clustered(items: int, dim: int) -> torch.Tensor:
    """Vectors `[items + 1, d]`; item i + 1 is near centre i modulo the number of clusters."""
    centres = torch.randn(_num_clusters(items), dim)
    vectors = torch.zeros(items + 1, dim)
    vectors[1:] = centres[torch.arange(items) % len(centres)] + 0.5 * torch.randn(items, dim)
    return vectors


def _num_clusters(items: int) -> int:
    return max(3, items // 100)


def _titles(items: int, rng: np.random.Generator) -> list[str]:
    chosen = rng.integers(0, len(WORDS), size=(items, 3))
    return [
        f"The {WORDS[a]} {WORDS[b]} of {WORDS[c]} (Volume {number})"
        for number, (a, b, c) in enumerate(chosen.tolist(), 1)
    ]
