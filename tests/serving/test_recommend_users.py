"""A file of users against the same users one by one."""

import polars as pl
import pytest

import crossbatch.serving.tables as batch_module
from crossbatch.errors import ConfigError, DataError
from crossbatch.serving.tables import recommend_users


@pytest.fixture
def users(light_bundle):
    """Users of every sort: long, short, unknown, empty, null; with features and without."""
    keys = light_bundle.item_keys(range(201))
    histories = [keys[1 : 1 + length] for length in (3, 1, 40, 7, 2)]
    return pl.DataFrame(
        {
            "user": ["a", "b", "c", "d", "e", "f", "g"],
            "history": [*histories, [], None],
            "age": [31.0, None, 50.0, None, 20.0, None, None],
            "region": ["north", None, None, None, "moon", None, None],
            "other": range(7),
        }
    )


def one_by_one(bundle, users, k, **options):
    rows = []
    for user in users.iter_rows(named=True):
        features = {name: user[name] for name in ("age", "region") if user.get(name) is not None}
        (found,) = bundle.recommend(
            [user["history"] or []], k, user_features=[features or None], **options
        )
        rows += [(user["user"], rank, i.key, i.title) for rank, i in enumerate(found.items, 1)]
    return rows


def listed(path):
    readers = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}
    frame = readers[path.suffix](path).with_columns(pl.col("item").cast(pl.String))
    assert frame.columns == ["user", "rank", "item", "title", "score"]
    return frame.drop("score").rows()


@pytest.mark.parametrize("source", [".parquet", ".csv", ".jsonl"])
@pytest.mark.parametrize("target", [".parquet", ".csv", ".jsonl"])
def test_equals_one_by_one(light_bundle, users, tmp_path, monkeypatch, source, target):
    monkeypatch.setattr(batch_module, "CHUNK_USERS", 3)
    monkeypatch.setattr(batch_module, "CHUNK_CELLS", 45)
    path, out = tmp_path / f"users{source}", tmp_path / f"lists{target}"
    if source == ".parquet":
        users.write_parquet(path)
    elif source == ".csv":
        users.with_columns(pl.col("history").list.join(",")).write_csv(path)
    else:
        users.write_ndjson(path)
    tally = recommend_users(light_bundle, path, out, k=6)
    assert listed(out) == one_by_one(light_bundle, users, 6)
    assert (tally.users, tally.items, tally.unknown, tally.popular) == (7, 53, 0, 2)
    assert tally.rows == 42
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, out.name])


def test_options_reach_the_lists(light_bundle, users, tmp_path):
    users.write_parquet(tmp_path / "u.parquet")
    recommend_users(
        light_bundle, tmp_path / "u.parquet", tmp_path / "l.parquet", k=3, exclude_seen=False
    )
    assert listed(tmp_path / "l.parquet") == one_by_one(light_bundle, users, 3, exclude_seen=False)


def test_user_ids_keep_their_type_and_item_ids_may_be_numbers(id_bundle, tmp_path):
    frame = pl.DataFrame({"user_id": [7, 8], "items": [[1, 2], [-5]]})
    frame.write_parquet(tmp_path / "u.parquet")
    tally = recommend_users(id_bundle, tmp_path / "u.parquet", tmp_path / "l.parquet", k=2)
    assert pl.read_parquet(tmp_path / "l.parquet")["user"].to_list() == [7, 7, 8, 8]
    assert tally.unknown == tally.items == 3
    assert tally.popular == 2


def test_chunks_are_bounded_by_users_and_by_cells(monkeypatch):
    monkeypatch.setattr(batch_module, "CHUNK_USERS", 4)
    monkeypatch.setattr(batch_module, "CHUNK_CELLS", 10)
    lengths = [2, 2, 2, 2, 2, 9, 1, 50, 1]
    frame = pl.DataFrame({"history": [["x"] * length for length in lengths]})
    sizes = [chunk["history"].list.len().to_list() for chunk in batch_module._chunks(frame)]
    assert sizes == [[2, 2, 2, 2], [2], [9], [1], [50], [1]]


def test_progress_counts_users(id_bundle, users, tmp_path):
    users.write_parquet(tmp_path / "u.parquet")
    seen = []
    recommend_users(
        id_bundle,
        tmp_path / "u.parquet",
        tmp_path / "l.parquet",
        k=1,
        progress=lambda *state: seen.append(state),
    )
    assert seen[-1] == ("users", 7, 7)


@pytest.mark.parametrize(
    ("users_name", "out_name", "error", "message"),
    [
        ("u.parquet", "l.txt", ConfigError, "--out must end in"),
        ("u.txt", "l.parquet", ConfigError, "--users must end in"),
        ("u.parquet", "no/l.parquet", ConfigError, "does not exist: make it first"),
        ("u.parquet", "there.parquet", ConfigError, "already exists"),
        ("gone.parquet", "l.parquet", DataError, "gone.parquet cannot be read"),
        ("broken.parquet", "l.parquet", DataError, "broken.parquet cannot be read"),
        ("columns.parquet", "l.parquet", ConfigError, "needs a column 'history'.*are user, what"),
        ("empty.parquet", "l.parquet", DataError, "nothing to write"),
    ],
)
def test_mistakes_are_named(id_bundle, users, tmp_path, users_name, out_name, error, message):
    users.write_parquet(tmp_path / "u.parquet")
    users.clear().write_parquet(tmp_path / "empty.parquet")
    pl.DataFrame({"user": [1], "what": [2]}).write_parquet(tmp_path / "columns.parquet")
    whole = (tmp_path / "u.parquet").read_bytes()
    (tmp_path / "broken.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "there.parquet").write_text("")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        recommend_users(id_bundle, tmp_path / users_name, tmp_path / out_name, k=3)
    assert sorted(tmp_path.iterdir()) == before, "nothing half-written"
