"""A small log as frames, and a model that was fitted on most of it."""

import polars as pl
import pytest

from crossbatch import Recommender
from crossbatch.data.synthetic import SynthOptions, write_raw

SETTINGS = {"train.eval_every": 20, "train.log_every": 20}


@pytest.fixture(scope="session")
def small():
    """Parameters of a training of a second."""
    small = {"model": "youtube_dnn", "negatives": "in_batch", "dim": 8, "max_steps": 40}
    return small | {"batch_size": 32, "settings": SETTINGS, "verbose": False}


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    """A folder with `log.parquet`, `later.parquet`, `items.parquet` and `users.parquet`."""
    folder = tmp_path_factory.mktemp("shop") / "raw"
    write_raw(SynthOptions(users=120, items=60, interactions=2400, seed=3), folder)
    log = pl.read_parquet(folder / "interactions/*.parquet").sort("timestamp")
    log[:2000].write_parquet(folder / "log.parquet")
    log[2000:].write_parquet(folder / "later.parquet")
    return folder


@pytest.fixture(scope="session")
def tables(raw):
    """The files as polars frames, by name."""
    names = ("log", "later", "items", "users")
    return {name: pl.read_parquet(raw / f"{name}.parquet") for name in names}


@pytest.fixture
def prepare_only(monkeypatch):
    """Let `fit` prepare the dataset and train nothing."""

    def opened(self, place, recipe, facts, start_from):
        self._open(place, facts)

    monkeypatch.setattr(Recommender, "_train", opened)


@pytest.fixture(scope="session")
def fitted(small, tables, tmp_path_factory):
    """A model in a folder; a test that changes it copies the folder."""
    folder = tmp_path_factory.mktemp("model") / "shop"
    recommender = Recommender(**small, folder=str(folder))
    return recommender.fit(tables["log"], items=tables["items"], users=tables["users"])
