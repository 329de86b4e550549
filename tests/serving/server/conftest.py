"""Two small trained bundles, and a server in a process of its own."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import polars as pl
import pytest

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.readers import open_source
from crossbatch.serving import export_bundle, open_bundle
from crossbatch.training import fit

from .running import RunningServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from crossbatch.data import Dataset
    from crossbatch.serving import Bundle

# Titles that try everything: accents, other scripts, quotes, markup, a comma in the id.
SPECIAL = {
    "m1": "Amélie Poulain (2001)",
    "m2": '<script>alert("no")</script>',
    "m3": "七人の侍 (1954)",
    "m4": "Schindler's List (1993)",
    "a,b/c?d=1&e": "Comma & Co. (1999)",
}
KEYS = [*SPECIAL, *(f"i{number}" for number in range(len(SPECIAL), 60))]
GENRES = ("Space", "Love", "Crime")


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Sixty films of three genres; each of 150 users likes two of them."""
    folder = tmp_path_factory.mktemp("films")
    rng = random.Random(0)
    log, users = ["user,item,time"], ["user,country,age"]
    for user in range(150):
        liked = rng.sample(range(3), 2)
        films = [key for place, key in enumerate(KEYS) if place % 3 in liked]
        chosen = rng.sample(films, 12)
        log += [f'u{user},"{key}",{1_000_000 + 60 * step}' for step, key in enumerate(chosen)]
        users.append(f"u{user},{rng.choice(['ch', 'de', 'fr'])},{rng.randint(18, 80)}")
    items = ["item,title"]
    for place, key in enumerate(KEYS):
        title = SPECIAL.get(key, f"{GENRES[place % 3]} Film {place} ({1950 + place})")
        items.append('"{}","{}"'.format(key, title.replace('"', '""')))
    for name, lines in (("interactions", log), ("users", users), ("items", items)):
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    source = open_source(folder)
    prepare(source, folder / "dataset", PrepareOptions(min_item_count=1, min_user_count=1))
    return open_dataset(folder / "dataset")


def trained(dataset: Dataset, folder: Path, model: Mapping[str, object], name: str) -> Path:
    recipe = Recipe.from_dict(
        {
            "model": {
                "name": "youtube_dnn",
                "dim": 8,
                "item_features": [],
                "history": "id",
                "normalize": False,
                "history_dropout": 0.0,
                **model,
            },
            "sampler": {"name": "in_batch"},
            "loss": {"temperature": 1.0},
            "train": {
                "schedule": "constant",
                "adam": "dense",
                "lr": 0.001,
                "batch_size": 32,
                "max_steps": 60,
                "eval_every": 60,
                "threads": 1,
            },
        }
    )
    fit(dataset, recipe, folder / "run")
    export_bundle(
        folder / "run",
        folder / "bundle",
        name=name,
        graph_formats=(),
        filter_columns=["genre", "year", "in_stock:boolean"],
        items=pl.DataFrame(
            {
                "item": KEYS,
                "genre": [GENRES[place % 3] for place in range(len(KEYS))],
                "year": [1950 + place for place in range(len(KEYS))],
            }
        ),
    )
    return folder / "bundle"


@pytest.fixture(scope="session")
def mind_path(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with three interests a user, and user features."""
    model = {"name": "mind", "tower": {"interests": 3}, "user_features": ["age", "country"]}
    return trained(dataset, tmp_path_factory.mktemp("mind"), model, "films-mind")


@pytest.fixture(scope="session")
def youtube_path(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one vector a user."""
    model = {"name": "youtube_dnn", "user_features": []}
    return trained(dataset, tmp_path_factory.mktemp("youtube"), model, "films-youtube")


@pytest.fixture(scope="session")
def mind(mind_path: Path) -> Bundle:
    return open_bundle(mind_path)


@pytest.fixture(scope="session")
def youtube(youtube_path: Path) -> Bundle:
    return open_bundle(youtube_path)


@pytest.fixture(scope="session")
def server(mind_path: Path, youtube_path: Path) -> Iterator[RunningServer]:
    """A server that no test may harm: the same one serves them all."""
    with RunningServer(mind_path, "--compare", str(youtube_path)) as running:
        yield running
        assert running.alive, "a request has brought the server down"
