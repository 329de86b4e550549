"""Precomputed vectors from three kinds of files: the same rows, never all of them in memory."""

import tracemalloc

import numpy as np
import polars as pl
import pytest

from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.dataset.vectors import open_vectors, write_vectors
from crossbatch.data.prepare import append
from crossbatch.errors import ConfigError, DataError
from crossbatch.models import FeatureTable

ROWS = [(f"u{user}", item, step) for user in range(10) for step, item in enumerate("abcd")]
VECTORS = {"c": [1.0, 2.0, 3.0], "x": [9.0, 9.0, 9.0], "a": [-1.5, 0.25, 100.0], "d": [0.5, 0, 4]}


def written(kind, folder, vectors=VECTORS):
    """The path of a source of vectors."""
    values = np.array(list(vectors.values()), dtype=np.float32)
    if kind == "npy":
        np.save(folder / "image.npy", values)
        (folder / "image.keys.txt").write_text("\n".join(vectors) + "\n")
        return folder / "image.npy"
    if kind == "parquet":
        frame = pl.DataFrame({"item": list(vectors), "any": values.tolist(), "note": "-"})
        frame.write_parquet(folder / "image.parquet")
        return folder / "image.parquet"
    (folder / "images").mkdir()
    for key, vector in zip(vectors, values, strict=True):
        np.save(folder / "images" / f"{key}.npy", vector)
    return folder / "images"


@pytest.mark.parametrize("kind", ["npy", "parquet", "folder"])
def test_rows_follow_the_items(make_dataset, source_of, tmp_path, kind):
    path = written(kind, tmp_path)
    dataset = make_dataset(source_of(ROWS, item_vectors={"image": path}))
    dataset.verify()
    feature = dataset.item_features["image"]
    assert (feature.kind, feature.num_values, feature.values.dtype) == ("dense", 3, np.float16)
    ids = dataset.item_ids(["a", "b", "c", "d"])
    expected = [VECTORS["a"], [0, 0, 0], VECTORS["c"], VECTORS["d"]]
    assert feature.values[ids].tolist() == expected
    assert feature.values[0].tolist() == [0, 0, 0]
    assert dataset.manifest["features"]["items"]["image"]["coverage"] == 0.75
    # Training reads the map itself.
    table = FeatureTable.from_arrays("dense", feature.values, None, 3)
    assert table.values.data_ptr() == feature.values.__array_interface__["data"][0]
    new = dataset.encode_items(pl.DataFrame({"image": [[1.0, 0.0, -2.0], None]}))["image"]
    assert new.values.tolist() == [[1, 0, -2], [0, 0, 0]]


@pytest.mark.parametrize("kind", ["npy", "parquet", "folder"])
def test_appended_days_bring_further_vectors(source_of, tmp_path, kind):
    first, later = tmp_path / "first", tmp_path / "later"
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    options = PrepareOptions(min_item_count=1, min_user_count=1, growing=True, split="time")
    path = written(kind, tmp_path / "one")
    prepare(source_of(ROWS, item_vectors={"image": path}), first, options)
    rows = [(user, "e", time + 100) for user, _, time in ROWS[::4]]
    path = written(kind, tmp_path / "two", {"e": [7.0, 7, 7], "c": [0.0, 0, 1]})
    append(source_of(rows, item_vectors={"image": path}), first, later, {})
    dataset = open_dataset(later)
    dataset.verify()
    found = dataset.item_features["image"].values[dataset.item_ids(["a", "b", "c", "e"])]
    assert found.tolist() == [VECTORS["a"], [0, 0, 0], [0, 0, 1], [7, 7, 7]]
    with pytest.raises(DataError, match="no feature of vectors 'sound' to add to"):
        append(source_of(rows, item_vectors={"sound": path}), first, tmp_path / "no", {})


def test_the_whole_is_never_in_memory(tmp_path):
    num, width = 30_000, 64  # 7.7 MB of float32
    values = np.random.default_rng(0).standard_normal((num, width)).astype(np.float32)
    np.save(tmp_path / "image.npy", values)
    keys = [f"k{i}" for i in range(num)]
    (tmp_path / "image.keys.txt").write_text("\n".join(keys))
    wanted = pl.Series([None, *reversed(keys)], dtype=pl.String)
    expected = values[::-1].astype(np.float16)
    del values
    vectors = open_vectors("image", tmp_path / "image.npy")
    tracemalloc.start()  # sees arrays of NumPy, and not what is mapped
    write_vectors(tmp_path / "out.npy", wanted, vectors)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4_000_000
    assert np.array_equal(np.load(tmp_path / "out.npy")[1:], expected)


def test_mistakes_are_one_sentence(source_of, make_dataset, tmp_path):
    def fails(path, error, message):
        with pytest.raises(error, match=message):
            make_dataset(source_of(ROWS, item_vectors={"image": path}))

    fails(tmp_path / "none.npy", ConfigError, "must be a file or folder, got")
    np.save(tmp_path / "a.npy", np.zeros((4, 3), dtype=np.float32))
    fails(tmp_path / "a.npy", ConfigError, r"needs the items' keys beside it.*a\.keys\.txt")
    (tmp_path / "a.keys.txt").write_text("a\nb\n")
    fails(tmp_path / "a.npy", DataError, "has 2 keys, but .* has 4 rows")
    np.save(tmp_path / "b.npy", np.zeros(4))
    fails(tmp_path / "b.npy", DataError, r"of shape \[items, width\]")
    np.save(tmp_path / "c.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    fails(tmp_path / "c.npy", DataError, "cannot be read")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", DataError, r"holds no KEY\.npy files")
    pl.DataFrame({"item": ["a"], "price": [1.0]}).write_parquet(tmp_path / "d.parquet")
    fails(tmp_path / "d.parquet", ConfigError, "a list of numbers in a column 'image'")
    ragged = pl.DataFrame({"item": ["a", "b"], "image": [[1.0, 2.0], [1.0]]})
    ragged.write_parquet(tmp_path / "e.parquet")
    fails(tmp_path / "e.parquet", DataError, "must have vectors of 2 numbers, got one of 1")
    wrong = written("npy", tmp_path, {"a": [np.inf, 0, 0]})
    fails(wrong, DataError, "must hold numbers between")
    fails(written("parquet", tmp_path, {"q": [0.0, 0, 0]}), DataError, "no item has a vector")
