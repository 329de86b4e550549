"""A bundle of any size with random weights: for measuring how fast answers are, not how good."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from crossbatch.config import ModelConfig, build
from crossbatch.models import MODELS, ItemTower, TwoTower
from crossbatch.serving.export import Contents, facts, write_parts
from crossbatch.serving.manifest import write_manifest
from crossbatch.serving.towers import split_state

WORDS = (
    "Silver Golden River Letter Harbour Season Winter Garden Stranger Daughter Kingdom Shadow "
    "Secret Light House Road Night Dream Stone Fire Bridge Mirror Island Storm Lantern"
).split()


def write_bundle(
    folder: Path, items: int, *, model: str = "youtube_dnn", dim: int = 64, seed: int = 0
) -> None:
    """Write a bundle of `items` items: keys "b1" …, titles of about 40 letters, Zipf counts."""
    torch.manual_seed(seed)
    config = ModelConfig(name=model, dim=dim, item_features=(), user_features=())
    towers = TwoTower(
        ItemTower(items, dim),
        build(MODELS, "model", {"name": model} | config.tower, dim),
        history=config.history,
    )
    item_state, user_state = split_state(towers)
    counts = (1e6 / np.arange(1, items + 2)).astype(np.int64)
    counts[0] = 0
    contents = Contents(
        name=f"synthetic-{items}",
        config=config,
        history_length=20,
        metrics={},
        keys=["", *(f"b{number}" for number in range(1, items + 1))],
        titles=["", *_titles(items, np.random.default_rng(seed))],
        counts=counts,
        vectors=torch.randn(items + 1, dim),
        item_state=item_state,
        user_state=user_state,
        trained=items,
        features=folder / "none",
        origin={},
    )
    folder.mkdir(parents=True)
    write_parts(folder, contents)
    write_manifest(folder, facts(contents))


def _titles(items: int, rng: np.random.Generator) -> list[str]:
    chosen = rng.integers(0, len(WORDS), size=(items, 3))
    return [
        f"The {WORDS[a]} {WORDS[b]} of {WORDS[c]} (Volume {number})"
        for number, (a, b, c) in enumerate(chosen.tolist(), 1)
    ]
