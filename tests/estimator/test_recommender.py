"""`Recommender` gives what the commands give, from any kind of frame."""

import json
import shutil
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import coo_matrix, csr_matrix
from sklearn.base import clone

import crossbatch
from crossbatch import Recipe, Recommender
from crossbatch.cli import main
from crossbatch.data import Dataset
from crossbatch.errors import ConfigError, DataError
from crossbatch.serving import open_bundle

SETS = ["model.name=youtube_dnn", "sampler.name=in_batch", "model.dim=8", "train.max_steps=40"]
SETS += ["train.batch_size=32", "train.eval_every=20", "train.log_every=20"]


@pytest.fixture
def command(monkeypatch, tmp_path):
    """Run a command in this process: importing torch anew takes seconds."""

    def run(*words):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["crossbatch", *map(str, words), "--quiet"])
        with pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code

    return run


def sets():
    return [word for each in SETS for word in ("--set", each)]


def same_model(folder, run, bundle):
    """Whether metrics and vectors are equal to the last bit."""
    ours, theirs = (
        json.loads((each / "result.json").read_text()) for each in (folder / "run", run)
    )
    for key in ("valid", "valid_unseen", "test", "test_unseen", "test_ci", "steps", "best_step"):
        assert ours[key] == theirs[key], key
    for name in ("item_vectors.npy", "user_tower.safetensors"):
        assert (folder / "bundle" / name).read_bytes() == (bundle / name).read_bytes()


def test_the_commands_give_the_same_to_the_bit(fitted, tables, raw, command, tmp_path):
    options = ["--items", raw / "items.parquet", "--users", raw / "users.parquet"]
    options += ["--split", "leave_last_out", "--growing"]
    command("prepare", raw / "log.parquet", *options, "--out", "dataset")
    command("train", "--data", "dataset", "--out", "first", *sets())
    command("export", "first", "--out", "shop.bundle")
    assert fitted.dataset_.manifest["checksum"] == Dataset("dataset").manifest["checksum"]
    same_model(fitted._place, tmp_path / "first", tmp_path / "shop.bundle")

    users = tables["log"].group_by("user", maintain_order=True).agg(pl.col("item").alias("history"))
    users.select("user", "history").write_parquet("users.parquet")
    command(
        "recommend", "shop.bundle", "--users", "users.parquet", "--out", "lists.parquet", "-k", 5
    )
    ours = fitted.recommend(users["history"].to_list(), k=5)
    assert ours.table.drop("user").equals(pl.read_parquet("lists.parquet").drop("user"))

    later = shutil.copytree(fitted._place, tmp_path / "later")
    recommender = Recommender.load(later).partial_fit(tables["later"])
    command("prepare", raw / "later.parquet", "--append", "dataset", "--out", "grown")
    command("train", "--data", "grown", "--out", "second", "--from", "shop.bundle", *sets())
    command("export", "second", "--out", "second.bundle")
    assert recommender.dataset_.manifest["checksum"] == Dataset("grown").manifest["checksum"]
    same_model(later, tmp_path / "second", tmp_path / "second.bundle")


@pytest.mark.parametrize("kind", ["pandas", "pyarrow", "lazy"])
def test_all_kinds_of_frames_give_the_same_dataset(kind, fitted, tables, prepare_only):
    frames = {name: frame for name, frame in tables.items() if name != "later"}
    convert = {"pandas": pl.DataFrame.to_pandas, "pyarrow": pl.DataFrame.to_arrow}
    frames = {name: convert.get(kind, pl.DataFrame.lazy)(frame) for name, frame in frames.items()}
    if kind == "pandas":
        frames["log"]["user"] = frames["log"]["user"].astype("category")
        frames["log"]["timestamp"] = pd.to_datetime(frames["log"]["timestamp"], unit="s")
        frames["log"]["unrelated"] = [[], "x"] * 1000
    found = Recommender().fit(frames.pop("log"), **frames)
    assert found.dataset_.manifest["checksum"] == fitted.dataset_.manifest["checksum"]
    assert found._facts.library == ("polars" if kind == "lazy" else kind)


@pytest.mark.parametrize("kind", [np.asarray, csr_matrix, coo_matrix])
def test_a_matrix_is_a_log_without_times(kind, prepare_only):
    rng = np.random.default_rng(0)
    matrix = rng.integers(0, 3, (40, 12))
    found = Recommender(prepare={"min_item_count": 1, "min_user_count": 1}).fit(kind(matrix))
    dataset = found.dataset_
    for row, user in enumerate(dataset.user_keys(range(dataset.num_users))):
        items = dataset.item_keys(dataset.items[slice(*dataset.offsets[row : row + 2])])
        assert sorted(map(int, items)) == np.flatnonzero(matrix[int(user)]).tolist()


def test_lists_of_users_are_those_of_their_histories_and_features(fitted, tables):
    dataset = fitted.dataset_
    users = dataset.user_keys(range(3))
    rows = [slice(*dataset.offsets[n : n + 2]) for n in range(3)]
    histories = [dataset.item_keys(dataset.items[row]) for row in rows]
    for user, history in zip(users, histories, strict=True):  # the whole log of the user
        assert sorted(history) == sorted(tables["log"].filter(user=user)["item"])
    content = tables["users"].rows_by_key("user", named=True, unique=True)
    features = [{k: v for k, v in content[user].items() if k != "user"} for user in users]
    assert set(fitted.bundle_.user_encoders) == set(features[0])
    expected = fitted.bundle_.recommend(histories, 4, user_features=features)
    for answer in (
        fitted.recommend(users, k=4),
        fitted.recommend(histories, k=4, user_features=features),
        fitted.recommend([tuple(history) for history in histories], 4, user_features=features),
    ):
        assert answer.items == [[item.key for item in each.items] for each in expected]
        assert answer.table["score"].to_list() == [i.score for each in expected for i in each.items]
        assert answer[1] == answer.items[1]
    everybody = fitted.recommend(k=2)
    assert everybody.table.columns == ["user", "rank", "item", "title", "score"]
    assert everybody.queries == dataset.user_keys(range(dataset.num_users))
    some = [str(key) for key in tables["items"]["item"][:5]]
    only = fitted.recommend(users, k=4, candidates=some, exclude_seen=False)
    assert set(only.table["item"]) <= set(some)
    assert only.sizes == [4, 4, 4]
    banned = fitted.recommend(users, k=4).items[0][:2]
    assert not set(banned) & set(fitted.recommend(users, k=4, exclude=banned).items[0])


def test_answers_have_the_ids_and_the_library_of_the_frame(small, tables):
    log = tables["log"].to_pandas()
    for name in ("user", "item"):
        log[name] = log[name].str[1:].astype(int)
    found = Recommender(**small | {"max_steps": 20}).fit(log)
    answer = found.recommend(log["user"].unique()[:2], k=3)
    table = answer.to_frame()
    assert isinstance(table, pd.DataFrame)
    assert table["item"].dtype == np.int64
    assert set(table["item"]) <= set(log["item"])
    assert set(table["user"]) <= set(log["user"])
    assert found.similar(int(log["item"].iloc[0]), 2).table["item"].dtype == pl.Int64
    assert answer.to_frame("pyarrow").num_rows == 6
    assert found.recommend(k=1).table["user"].dtype == pl.Int64
    unknown = found.recommend([int(log["user"].iloc[0]), 10**9], k=3)
    assert unknown.popular == [False, True]


def test_filters_events_and_context_of_the_commands(small, tables):
    rows = len(tables["log"])
    more = {"kind": ["click", "buy"] * (rows // 2), "device": ["phone", "desk"] * (rows // 2)}
    options = {"event": "kind", "event_weights": {"click": 1, "buy": 5}}
    options |= {"context": {"device": "categorical"}}
    found = Recommender(**small | {"max_steps": 20}, prepare=options, filters=["category"])
    log = tables["log"].with_columns(pl.Series(name, values) for name, values in more.items())
    found.fit(log, items=tables["items"])
    assert found.dataset_.manifest["options"]["event_weights"] == {"click": 1, "buy": 5}
    wanted = tables["items"]["category"].mode().sort()[0]
    category = dict(tables["items"].select("item", "category").iter_rows())
    users = found.dataset_.user_keys(range(3))
    around = [{"device": "phone"}] * 3
    lists = found.recommend(users, 3, filter={"category": wanted}, context=around)
    assert len(lists.table) > 0
    assert {category[item] for item in lists.table["item"]} == {wanted}
    with pytest.raises(ConfigError, match="one entry for each of 3"):
        found.recommend(users, 3, context=[{}])


def test_users_with_context_are_their_histories_with_features(small, tables, tmp_path):
    """Also after `partial_fit`, of a log with weights, sessions and context."""
    options = {"event": "kind", "event_weights": {"view": 0, "click": 1}, "session_gap": 60}
    options |= {"context": {"device": "categorical"}, "clock": ["since_last"]}

    def with_events(log):
        kinds = ["click", "view", "click"] * len(log)
        devices = ["phone", None, "desk", "tv"] * len(log)
        columns = {"kind": kinds[: len(log)], "device": devices[: len(log)]}
        return log.with_columns(**{name: pl.Series(each) for name, each in columns.items()})

    found = Recommender(**small | {"max_steps": 20}, prepare=options)
    found.fit(with_events(tables["log"]), users=tables["users"])
    before = len(found.dataset_.items)
    found.partial_fit(with_events(tables["later"]), users=tables["users"])
    dataset = found.dataset_
    assert len(dataset.items) > before
    names = list(found.bundle_.user_encoders)
    assert names
    users = dataset.user_keys(range(4))
    ends = dataset.offsets
    histories = [dataset.item_keys(dataset.items[ends[n] : ends[n + 1]]) for n in range(4)]
    known = {row["user"]: row for row in tables["users"].iter_rows(named=True)}
    profiles = [{name: known[user][name] for name in names} for user in users]
    around = [{"device": "phone"}, {"device": "tv", "since_last": 60}, {}, None]
    for context in (around, None):
        ours = found.recommend(users, 5, context=context)
        theirs = found.recommend(histories, 5, user_features=profiles, context=context)
        assert ours.items == theirs.items
        np.testing.assert_allclose(ours.table["score"], theirs.table["score"], rtol=1e-5)
    assert found.evaluate(k=5).library == "polars"


def test_similar_items_are_those_of_the_bundle(fitted, tables):
    keys = tables["items"]["item"][:2].to_list()
    found = fitted.similar(keys, 3)
    assert found.items == [[item.key for item in fitted.bundle_.similar(key, 3)] for key in keys]
    assert fitted.similar(keys[0], 3).items == found.items[:1]
    assert found.to_frame().columns == ["query", "rank", "item", "title", "score"]


def test_saved_and_loaded_it_answers_the_same(fitted, tmp_path):
    path = fitted.save(str(tmp_path / "saved"))
    found = Recommender.load(str(path))
    assert found.get_params() == fitted.get_params() | {"folder": str(path)}
    assert found.recommend(k=5).table.equals(fitted.recommend(k=5).table)
    assert found.evaluate().means() == pytest.approx(fitted.evaluate().means(), nan_ok=True)
    assert found.result_ == fitted.result_
    with pytest.raises(DataError, match="already exists"):
        fitted.save(path)
    assert open_bundle(path / "bundle").num_items == fitted.bundle_.num_items


def test_evaluation_is_that_of_training(fitted):
    for split in ("valid", "test"):
        means = fitted.evaluate(split).means()
        for name, value in fitted.result_[split].items():
            assert means[name] == value or (value is None and np.isnan(means[name]))


def test_an_interrupted_fit_resumes(small, tables, tmp_path, monkeypatch, fitted):
    calls = []
    export = crossbatch.estimator.recommender.export_bundle

    def killed(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return export(*arguments, **options)

    monkeypatch.setattr(crossbatch.estimator.recommender, "export_bundle", killed)
    recommender = Recommender(**small, folder=tmp_path / "shop")
    content = {name: tables[name] for name in ("items", "users")}
    with pytest.raises(KeyboardInterrupt):
        recommender.fit(tables["log"], **content)
    trained = (tmp_path / "shop/run.next/result.json").stat().st_mtime_ns
    with pytest.raises(DataError, match="call fit again"):
        Recommender.load(tmp_path / "shop")
    recommender.fit(tables["log"], **content)
    assert (tmp_path / "shop/run/result.json").stat().st_mtime_ns == trained
    assert recommender.recommend(k=3).table.equals(fitted.recommend(k=3).table)


def test_parameters_are_those_of_an_estimator(fitted):
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    assert twin._place is None
    assert twin.set_params(dim=16, model="gru4rec") is twin
    assert repr(Recommender("mind", dim=4)) == "Recommender(model='mind', dim=4)"
    assert "fitted on 109 users" in repr(fitted)
    recipe = Recommender(
        recipe=Recipe.load("demo"), seed=7, settings={"model.tower": {"pooling": "mean"}}
    )._recipe()
    assert recipe.train.seed == 7
    assert recipe.model.name == Recipe.load("demo").model.name
    assert recipe.model.tower["pooling"] == "mean"
    with pytest.raises(ConfigError, match="'dims' is no parameter"):
        twin.set_params(dims=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda log: log.rename({"timestamp": "when"}),
            r'Recommender\(time=…\), or pass time="none"',
        ),
        (lambda log: log.drop("item"), r"name it, as Recommender\(item=…\)"),
        (lambda log: log["item"].to_list(), "a data frame or a matrix"),
        (lambda log: log[:0], "no interactions were read"),
        (lambda log: log.to_pandas().assign(user=["x", 3] * 1000), "give each column one type"),
    ],
)
def test_a_wrong_log_is_refused_in_one_sentence(small, change, message, tables):
    with pytest.raises((ConfigError, DataError), match=message) as refused:
        Recommender(**small).fit(change(tables["log"]))
    assert "\n" not in str(refused.value)


def test_wrong_calls_are_refused_in_one_sentence(small, fitted, tables, tmp_path):
    with pytest.raises(ConfigError, match="call fit first"):
        Recommender().recommend(["u"])
    for wrong, message in [
        ("U00000001", "pass a list"),
        (["nobody"], "none of the 1 users is in the data"),
        ([], "users is empty"),
        (["U00000001", ["B00000001"]], "not both"),
    ]:
        with pytest.raises(ConfigError, match=message):
            fitted.recommend(wrong)
    with pytest.raises(ConfigError, match="items must be a data frame"):
        Recommender(**small).fit(tables["log"], items=[1])
    with pytest.raises(ConfigError, match=r"unknown key train\.epochs"):
        Recommender(settings={"train.epochs": 3}).fit(tables["log"])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else than a model"):
        Recommender(**small, folder=tmp_path).fit(tables["log"])
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(DataError, match="is no fitted Recommender"):
        Recommender.load(tmp_path)


def test_a_temporary_folder_goes_with_the_model(tables, prepare_only):
    found = Recommender().fit(tables["log"])
    place = found._place
    assert place.is_dir()
    del found
    assert not place.exists()


def test_the_version_is_that_of_the_package():
    code = "import crossbatch; print(crossbatch.__version__)"
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == version("crossbatch")


def test_shards_are_refused(tmp_path):
    model = Recommender(folder=tmp_path, prepare={"shards": 2})
    with pytest.raises(ConfigError, match="shards = 2, but a Recommender keeps all histories"):
        model.fit(pl.DataFrame({"user": ["u"] * 9, "item": ["i"] * 9, "time": range(9)}))
