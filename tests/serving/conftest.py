"""Two small runs on generated data: one of ids alone, one that reads content and user features."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from crossbatch.config import Recipe
from crossbatch.data import Dataset, PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.serving import Bundle, export_bundle
from crossbatch.training import fit
from crossbatch.training.run_folder import SavedRun, open_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch

BASE = {"name": "youtube_dnn", "dim": 8, "history": "id", "normalize": False}
BASE |= {"history_dropout": 0.0}
TRAIN = {
    "schedule": "constant",
    "adam": "dense",
    "batch_size": 32,
    "max_steps": 40,
    "eval_every": 40,
    "lr": 0.02,
    "threads": 1,
}


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """400 users, 200 items with content, of which ten were withheld from training."""
    path = tmp_path_factory.mktemp("shop") / "dataset"
    source = synthetic_source(SynthOptions(users=400, items=200, interactions=6000, seed=3))
    prepare(source, path, PrepareOptions(cold_items=0.05))
    return open_dataset(path)


def trained(
    dataset: Dataset,
    out: Path,
    *,
    train: dict[str, object] | None = None,
    temperature: float = 1.0,
    own_model: Callable[[Recipe, Dataset], torch.nn.Module] | None = None,
    **model: object,
) -> Path:
    """A run of seconds, with the recipe's towers or with those of a caller."""
    recipe = Recipe.from_dict(
        {
            "model": BASE | model,
            "sampler": {"name": "in_batch"},
            "loss": {"temperature": temperature},
            "train": TRAIN | (train or {}),
        }
    )
    fit(dataset, recipe, out, model=None if own_model is None else own_model(recipe, dataset))
    return out


@pytest.fixture(scope="session")
def content_run(shop: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three interests a user, item content, histories read through it, user features."""
    out = tmp_path_factory.mktemp("content") / "run"
    tower = {"interests": 3}
    return trained(shop, out, name="mind", tower=tower, history="item_tower", normalize=True)


@pytest.fixture(scope="session")
def id_run(shop: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One vector a user, ids alone."""
    out = tmp_path_factory.mktemp("id") / "run"
    return trained(shop, out, name="youtube_dnn", item_features=[], user_features=[])


@pytest.fixture(scope="session")
def content_saved(content_run: Path) -> SavedRun:
    return open_run(content_run)


@pytest.fixture(scope="session")
def id_saved(id_run: Path) -> SavedRun:
    return open_run(id_run)


@pytest.fixture(scope="session")
def content_bundle(content_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return export_bundle(content_run, tmp_path_factory.mktemp("bundles") / "content")


@pytest.fixture(scope="session")
def light_bundle(content_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The same without exported graphs, which take most of the time."""
    out = tmp_path_factory.mktemp("bundles") / "light"
    return export_bundle(content_run, out, graph_formats=())


@pytest.fixture(scope="session")
def id_bundle(id_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("bundles") / "ids"
    return export_bundle(id_run, out, graph_formats=())
