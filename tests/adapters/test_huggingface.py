"""A log from Hugging Face datasets becomes the same dataset as its Parquet file would."""

import itertools

import numpy as np
import polars as pl
import pytest

pytest.importorskip("datasets")

import datasets

from crossbatch.adapters.huggingface import item_table, to_dataset_dict, write_log
from crossbatch.data import open_dataset, open_source, prepare
from crossbatch.data.synthetic import SynthOptions, write_raw
from crossbatch.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hf") / "raw"
    write_raw(SynthOptions(users=200, items=100, interactions=4000, seed=1), folder)
    return folder


@pytest.fixture(scope="module")
def tables(raw):
    frames = {
        "interactions": pl.read_parquet(raw / "interactions" / "*.parquet"),
        "items": pl.read_parquet(raw / "items.parquet"),
        "users": pl.read_parquet(raw / "users.parquet"),
    }
    return {name: datasets.Dataset.from_polars(frame) for name, frame in frames.items()}


@pytest.fixture(scope="module")
def prepared(raw):
    prepare(open_source(raw), raw.parent / "data")
    return open_dataset(raw.parent / "data")


def test_a_log_prepares_as_its_files_do(tables, prepared, tmp_path):
    """Under other column names, through the adapter and back: every array is the same."""
    log = tables["interactions"].rename_columns({"user": "who", "item": "what"})
    items = tables["items"].rename_columns({"item": "what"})
    users = tables["users"].rename_columns({"user": "who"})
    write_log(log, tmp_path / "raw", user="who", item="what", items=items, users=users)
    prepare(open_source(tmp_path / "raw"), tmp_path / "data")
    ours = open_dataset(tmp_path / "data")
    for name, checksum in prepared.manifest["files"].items():
        assert ours.manifest["files"][name] == checksum, name


def test_a_dataset_goes_back_whole(prepared):
    found = to_dataset_dict(prepared)
    offsets, items = prepared.train_sequences()
    assert found["train"]["items"][:] == [
        items[a:b].tolist() for a, b in itertools.pairwise(offsets)
    ]
    assert found["train"]["user"][:] == prepared.user_keys(prepared.train_users)
    for split in ("valid", "test"):
        rows = found[split]
        assert len(rows) == prepared.num_eval_users(split)
        ids = prepared.user_ids(rows["user"][:])
        for user, history, targets in zip(ids, rows["history"], rows["targets"], strict=True):
            start, end = prepared.offsets[user], prepared.offsets[user + 1]
            assert [*history, *targets] == prepared.items[start:end].tolist()


def test_the_item_table_names_every_id(prepared):
    table = item_table(prepared)
    assert table["item_id"][:] == list(range(1, prepared.num_items + 1))
    assert prepared.item_ids(table["item"][:]).tolist() == table["item_id"][:]
    assert np.sum(table["count"][:]) == prepared.item_counts.sum()


def test_mistakes_are_named(tables, tmp_path):
    with pytest.raises(ConfigError, match="interactions has no column 'nobody'"):
        write_log(tables["interactions"], tmp_path / "raw", user="nobody")
    with pytest.raises(ConfigError, match="items has no column 'who'"):
        write_log(
            tables["interactions"].rename_columns({"item": "who"}),
            tmp_path / "raw",
            item="who",
            items=tables["items"],
        )
    assert not (tmp_path / "raw").exists()
    write_log(tables["interactions"], tmp_path / "raw")
    with pytest.raises(DataError, match="already exists"):
        write_log(tables["interactions"], tmp_path / "raw")
    write_log(tables["interactions"], tmp_path / "raw", overwrite=True)
