"""Users by a feature and by activity: each segment's numbers are those of its users alone."""

import numpy as np
import polars as pl
import pytest

from crossbatch.data import (
    Column,
    PrepareOptions,
    ReadOptions,
    open_dataset,
    open_source,
    prepare,
)
from crossbatch.errors import ConfigError
from crossbatch.evaluation import Evaluation, mean_interval
from crossbatch.evaluation.result import by_segment, user_labels

LENGTHS = {"a": 3, "b": 6, "c": 12, "d": 25, "e": 120}
COUNTRY = {"a": "FR", "b": "FR", "c": "PE", "d": None, "e": "PE"}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("segments")
    rows = [(user, f"i{n % 7}", n) for user, length in LENGTHS.items() for n in range(length)]
    log = pl.DataFrame(rows, schema=["user", "item", "time"], orient="row")
    log.write_parquet(folder / "interactions.parquet")
    age = [20, 30, 40, None, 50]
    users = {"user": list(LENGTHS), "country": list(COUNTRY.values()), "age": age}
    pl.DataFrame(users | {"tags": [["x", "y"]] * 5}).write_parquet(folder / "users.parquet")
    options = PrepareOptions(min_item_count=1, min_user_count=1, split="leave_last_out")
    prepare(open_source(folder), folder / "dataset", options)
    return open_dataset(folder / "dataset")


def labels_by_key(dataset, by):
    users = dataset.part("test")[0]
    labels = user_labels(dataset, "test", by, np.asarray(users))
    return dict(zip(dataset.user_keys(users), labels, strict=True))


def test_labels(dataset):
    assert labels_by_key(dataset, "activity") == {
        "a": "1–4 items",
        "b": "5–9 items",
        "c": "10–19 items",
        "d": "20–49 items",
        "e": "100+ items",
    }
    assert labels_by_key(dataset, "country") == {u: c or "unknown" for u, c in COUNTRY.items()}
    found = labels_by_key(dataset, "age")  # quarters of 20, 30, 40, 50: cut at 27.5, 35, 42.5
    assert found["d"] == "unknown"
    assert len(set(found.values())) == 5
    assert found["a"] == "20 to 27.5"
    for wrong in ("tags", "shoe"):
        with pytest.raises(ConfigError, match=rf"context \(country, age\), got '{wrong}'"):
            labels_by_key(dataset, wrong)


def test_labels_by_context(tmp_path):
    """The context of the first target with a weight, as evaluation reads it."""
    rows = [("u", "a", 10, "tv", 1), ("u", "b", 20, "phone", 1), ("u", "c", 80, "tv", 0)]
    rows += [("v", "a", 10, "phone", 1), ("v", "b", 15, "tv", 1), ("v", "c", 3005, None, 1)]
    rows += [("w", "a", 10, "tv", 1), ("w", "b", 70, "phone", 1), ("w", "c", 1000, "tv", 1)]
    rows += [(user, item, 1, "tv", 1) for user in "uvw" for item in "ab"]
    names = ["user", "item", "time", "device", "weight"]
    pl.DataFrame(rows, schema=names, orient="row").write_parquet(tmp_path / "log.parquet")
    context = {"context": (Column("device", "categorical"),), "clock": ("since_last",)}
    reading = ReadOptions(**context, weight="weight", time_unit="s")
    loose = {"min_item_count": 1, "min_user_count": 1, "split": "leave_last_out"}
    source = open_source(tmp_path / "log.parquet", "table", reading)
    prepare(source, tmp_path / "dataset", PrepareOptions(**loose))
    dataset = open_dataset(tmp_path / "dataset")
    assert labels_by_key(dataset, "device") == {"u": "phone", "v": "unknown", "w": "tv"}
    # 10, 2,990 and 930 seconds: quarters begin at 10, 470, 930 and 1,960
    found = labels_by_key(dataset, "since_last")
    assert found == {"u": "10 to 470", "v": "1960 to 2990", "w": "930 to 1960"}


def test_segments_have_the_values_of_their_users():
    recall = np.array([1.0, 0.0, 0.5, np.nan, 0.25])
    ids = np.arange(5)
    unseen = Evaluation({"recall@5": recall / 2}, {}, user_ids=ids)
    whole = Evaluation({"recall@5": recall}, {"coverage@5": 0.5}, unseen=unseen, user_ids=ids)
    parts = by_segment(whole, ["x", "10 to 20", "9 to 10", "unknown", "x"])
    assert list(parts) == ["x", "9 to 10", "10 to 20", "unknown"]
    assert parts["x"].means() == {"recall@5": 0.625}
    assert parts["x"].intervals()["recall@5"] == mean_interval(recall[[0, 4]])
    assert parts["x"].unseen.means() == {"recall@5": 0.3125}
    assert parts["unknown"].num_users == 0


def test_an_evaluation_as_a_frame():
    recall = np.array([1.0, 0.0, 0.5])
    part = Evaluation({"recall@5": recall[:1]}, {})
    whole = Evaluation({"recall@5": recall}, {"coverage@5": 0.5}, segments={"FR": part})
    assert repr(whole) == "<Evaluation of 3 users: recall@5 0.5000>"
    frame = whole.to_frame("pandas")
    assert frame["segment"].to_list() == ["", "", "FR"]
    assert frame["metric"].to_list() == ["recall@5", "coverage@5", "recall@5"]
    assert frame["value"].to_list() == [0.5, 0.5, 1.0]
    interval = mean_interval(recall)
    assert frame.loc[0, ["low", "high"]].to_list() == [interval.low, interval.high]
    assert frame["low"].isna().to_list() == [False, True, False]
    assert frame["users"].to_list() == [3, 3, 1]
