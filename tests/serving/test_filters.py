"""Filters, candidates and exclusions against plain Python over every item."""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.errors import ConfigError, DataError
from crossbatch.queries import Queries
from crossbatch.serving import export_bundle, open_bundle
from crossbatch.serving.bundle.change_items import add_items, remove_items
from crossbatch.serving.bundle.filter_columns import as_column, set_columns
from crossbatch.serving.bundle.manifest import BundleError, write_manifest
from crossbatch.serving.filters import FilterColumns

from .conftest import trained

START = datetime(2024, 1, 1, tzinfo=UTC)
COLUMNS = ("in_stock", "stock", "price", "colour", "tags", "since")


def shop_rows(keys, seed=0):
    """A row of filter columns for each item, every value missing now and then."""
    rng = random.Random(seed)

    def sometimes(value):
        return None if rng.random() < 0.15 else value

    return [
        {
            "item": key,
            "in_stock": sometimes(rng.random() < 0.5),
            "stock": sometimes(rng.randrange(5)),
            "price": sometimes(round(rng.uniform(1, 40), 2)),
            "colour": sometimes(rng.choice(["red", "green", "blue"])),
            "tags": sometimes(rng.sample(["new", "sale", "vegan"], rng.randrange(3))),
            "since": sometimes(START + timedelta(days=rng.randrange(100))),
        }
        for key in keys
    ]


def has(value, wanted):
    if wanted is None:
        return value is None or value == []
    return wanted in value if isinstance(value, list) else value is not None and value == wanted


def meets(value, condition):
    """The definition of a condition, one item at a time."""
    if isinstance(condition, dict):
        for operator, limit in condition.items():
            if operator == "not":
                met = not meets(value, limit)
            else:
                compare = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[operator]
                limit = datetime.fromisoformat(limit) if isinstance(limit, str) else limit
                limit = limit.replace(tzinfo=UTC) if isinstance(limit, datetime) else float(limit)
                own = value if isinstance(value, datetime | None) else float(value)
                met = own is not None and getattr(own, compare)(limit)
            if not met:
                return False
        return True
    if isinstance(condition, list):
        return any(has(value, wanted) for wanted in condition)
    return has(value, condition)


def matching(rows, conditions):
    return {
        row["item"]
        for row in rows
        if all(meets(row[name], condition) for name, condition in conditions.items())
    }


FILTERS = [
    {},
    {"in_stock": True},
    {"in_stock": False, "colour": "red"},
    {"in_stock": None},
    {"stock": [1, 3, None]},
    {"stock": 2.0},
    {"stock": [1.5, 2]},
    {"stock": {">=": 1, "<": 3.5}},
    {"price": {"<": 20}, "colour": ["red", "green"], "in_stock": True},
    {"price": {">": 10, "<=": 20}},
    {"price": {"not": {">": 10, "<=": 20}}},
    {"price": {"not": None}},
    {"colour": {"not": ["red", "green"]}},
    {"colour": "ultraviolet"},
    {"colour": []},
    {"tags": "sale"},
    {"tags": ["new", "vegan"]},
    {"tags": {"not": "sale"}},
    {"tags": None},
    {"tags": ["new", None]},
    {"since": {">=": "2024-02-01", "<": "2024-03-01T12:00:00"}},
    {"stock": {"<": 1e300, ">": -(10**30)}},
    {"stock": [*range(1, 40, 2), None]},
    {"price": {"not": [n / 100 for n in range(1, 4000, 5)]}},
    {"colour": ["red", *(f"shade {n}" for n in range(20))]},
    {"tags": [*(f"tag {n}" for n in range(20)), "sale"]},
]
TABLE = shop_rows([f"i{number}" for number in range(300)], seed=5)


def frame_of(rows):
    schema = {"in_stock": pl.Boolean, "stock": pl.Int64, "price": pl.Float64, "colour": pl.String}
    schema |= {"tags": pl.List(pl.String), "since": pl.Datetime("us", "UTC")}
    return pl.DataFrame(rows, schema={"item": pl.String, **schema})


@pytest.mark.parametrize("conditions", FILTERS, ids=json.dumps)
def test_conditions_mean_what_their_definition_says(conditions):
    columns = FilterColumns(frame_of(TABLE).drop("item"))
    mask = columns.allowed(conditions).mask
    found = {row["item"] for row, yes in zip(TABLE, mask[1:].tolist(), strict=True) if yes}
    assert found == matching(TABLE, conditions)
    assert not mask[0] or not conditions
    assert columns.allowed(conditions) is columns.allowed(json.loads(json.dumps(conditions)))


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["stock", "price"]),
        st.dictionaries(
            st.sampled_from(["<", "<=", ">", ">="]),
            st.one_of(st.integers(-(10**20), 10**20), st.floats(-50, 50)),
            min_size=1,
        ),
    )
)
def test_any_range_of_numbers(conditions):
    columns = FilterColumns(frame_of(TABLE).drop("item"))
    mask = columns.allowed(conditions).mask[1:].tolist()
    assert sum(mask) == len(matching(TABLE, conditions))


LARGE = [2**53, 2**53 + 1, 2**63 - 1, -(2**63), None]


@pytest.mark.parametrize(
    "limit", [2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 1e30, -1e30, 0.5]
)
@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
def test_large_integers_are_compared_exactly(operator, limit):
    columns = FilterColumns(pl.DataFrame({"n": pl.Series(LARGE, dtype=pl.Int64)}))
    compare = {"<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[operator]
    expected = [n is not None and getattr(Fraction(n), compare)(Fraction(limit)) for n in LARGE]
    assert columns.allowed({"n": {operator: limit}}).mask[1:].tolist() == expected


def test_many_times_are_found():
    times = [START + timedelta(hours=hour) for hour in range(40)]
    columns = FilterColumns(pl.DataFrame({"since": [*times, None]}))
    wanted = [time.isoformat() for time in times[::3]]
    expected = [not hour % 3 for hour in range(40)]
    for asked in (wanted, wanted[:4]):
        found = columns.allowed({"since": asked}).mask[1:].tolist()
        assert found == [yes and hour < 3 * len(asked) for hour, yes in enumerate(expected)] + [
            False
        ]


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ({"size": 1}, "no column 'size'"),
        ({"price": "cheap"}, "filter.price must be a number, got 'cheap'"),
        ({"price": True}, "filter.price must be a number"),
        ({"price": float("nan")}, "filter.price must be a number"),
        ({"price": {"<": "20"}}, "filter.price must be a number"),
        ({"price": {"<": None}}, "compares one number"),
        ({"price": {"~": 1}}, "unknown operator '~'"),
        ({"price": {}}, "an empty object"),
        ({"price": {"not": {"not": 3}}}, "a not inside a not"),
        ({"colour": {"<": "red"}}, "column of kind text"),
        ({"colour": 3}, "filter.colour must be a string, got 3"),
        ({"in_stock": "yes"}, "filter.in_stock must be a boolean"),
        ({"since": {"<": "soon"}}, "filter.since must be a time"),
        ({"stock": list(range(1001))}, "at most 1000 values"),
    ],
)
def test_an_impossible_condition_names_its_column(conditions, words):
    with pytest.raises(ConfigError, match=words):
        FilterColumns(frame_of(TABLE).drop("item")).allowed(conditions)


def test_old_sets_make_room_for_new_ones():
    columns = FilterColumns(frame_of(TABLE).drop("item"))
    first = columns.allowed({"price": {"<": -1}})
    for number in range(70):
        columns.allowed({"price": {"<": number}})
    assert len(columns._kept) == 64
    assert columns.allowed({"price": {"<": -1}}) is not first


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (["1", "0", None], "boolean", [True, False, None]),
        (["3", "-4"], "integer", [3, -4]),
        ([3.0, float("nan")], "integer", [3, None]),
        (["1.5", "2"], "number", [1.5, 2.0]),
        (["new | sale", "", None], "list", [["new", "sale"], [], None]),
        (["2024-01-02"], "time", [datetime(2024, 1, 2, tzinfo=UTC)]),
        ([1, 2], "text", ["1", "2"]),
    ],
)
def test_a_table_of_strings_becomes_the_kind_declared(values, kind, expected):
    assert as_column(pl.Series("x", values), kind).to_list() == expected


@pytest.mark.parametrize(
    ("values", "kind"),
    [(["maybe"], "boolean"), ([1.5], "integer"), (["x"], "number"), ([float("inf")], "number")],
)
def test_a_value_that_the_kind_cannot_hold_is_refused(values, kind):
    with pytest.raises(DataError, match="column 'x' has 1 values"):
        as_column(pl.Series("x", values), kind)


# --- whole bundles ---


MODELS = {
    "one vector": {"name": "youtube_dnn", "user_features": []},
    "interests": {"name": "mind", "tower": {"interests": 3}, "user_features": []},
    "queries": {"name": "recent_items", "normalize": True, "user_features": []},
}


@pytest.fixture(scope="module", params=MODELS)
def model_run(shop, tmp_path_factory, request):
    out = tmp_path_factory.mktemp("filtered") / "run"
    return trained(shop, out, temperature=0.2, **MODELS[request.param])


@pytest.fixture(scope="module")
def rows(shop):
    return shop_rows(shop.item_keys(range(1, shop.num_items + 1)))


@pytest.fixture(scope="module", params=["exact", "ivf"])
def any_bundle(model_run, rows, tmp_path_factory, request):
    out = tmp_path_factory.mktemp("bundles") / "filtered"
    return export_bundle(
        model_run, out, index=request.param, recall=0.9, graph_formats=(),
        filter_columns=COLUMNS, items=frame_of(rows),
    )  # fmt: skip


@pytest.fixture(scope="module")
def bundle(id_run, rows, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundles") / "plain"
    return export_bundle(
        id_run, out, graph_formats=(), filter_columns=COLUMNS, items=frame_of(rows)
    )


def brute_force(bundle, history, k, banned, may):
    """The k best of the items `may` that are not banned, scores in float64."""
    ids = torch.from_numpy(bundle.item_ids(history))[None]
    users = bundle.users(ids)
    items = bundle.item_vectors.double()
    if isinstance(users, Queries):
        logits = users.vectors[0].double() @ items.T + users.log_weights[0].double()[:, None]
        scores = logits.logsumexp(dim=0)
    else:
        scores = (users[0].double() @ items.T).amax(dim=0)
    keys = bundle.item_keys(range(bundle.num_items + 1))
    rest = [item for item in range(1, len(keys)) if keys[item] in may and keys[item] not in banned]
    ranked = sorted(rest, key=lambda item: (-float(scores[item]), item))[:k]
    return [(keys[item], float(scores[item])) for item in ranked]


def test_a_filtered_list_is_the_best_of_what_matches(any_bundle, rows):
    bundle, rng = any_bundle, random.Random(1)
    keys = bundle.item_keys(range(1, bundle.num_items + 1))
    limits = [None, rng.sample(keys, 60), ["no such item"], []]
    for conditions, candidates in itertools.product(FILTERS, limits):
        history, exclude = rng.sample(keys, 3), rng.sample(keys, 20)
        may = matching(rows, conditions) & set(keys if candidates is None else candidates)
        expected = brute_force(bundle, history, 12, {*history, *exclude}, may)
        (found,) = bundle.recommend(
            [history], 12, filter=conditions, candidates=candidates, exclude=exclude
        )
        assert len(found.items) == len(expected)
        for item, (key, score) in zip(found.items, expected, strict=True):
            assert item.score == pytest.approx(score, rel=1e-4, abs=1e-5)
            assert item.key == key or math.isclose(item.score, score, rel_tol=1e-5)
            assert item.key in may


def test_a_user_without_a_history_gets_the_most_popular_of_what_matches(bundle, rows):
    (found,) = bundle.recommend([["nothing known"]], 15, filter={"colour": "red"})
    assert found.popular
    counts = dict(zip(bundle.item_keys(range(1, 201)), bundle.item_counts[1:], strict=False))
    reds = sorted(matching(rows, {"colour": "red"}), key=lambda key: -counts[key])
    assert [counts[item.key] for item in found.items] == [counts[key] for key in reds[:15]]
    assert {item.key for item in found.items} <= set(reds)


def test_changed_columns_make_a_new_version_and_nothing_else(bundle, rows, tmp_path):
    red = sorted(matching(rows, {"colour": "red"}))
    changes = pl.DataFrame(
        {"item": [*red[:3], "not there"], "colour": ["blue", None, "red", "red"]}
    )
    changed = set_columns(bundle, changes, tmp_path / "next", declare=["on_sale:boolean"])
    assert changed.version != bundle.version
    assert changed.manifest["origin"]["changes"][-1]["items"] == 3
    now = {row["item"]: row["colour"] for row in rows}
    now |= {red[0]: "blue", red[1]: None}
    assert changed.filters.frame["colour"].to_list() == [now[row["item"]] for row in rows]
    assert changed.filters.frame["on_sale"].null_count() == len(rows)
    assert changed.filters.frame["price"].to_list() == [row["price"] for row in rows]
    for name, entry in bundle.manifest["files"].items():
        assert name == "filters.parquet" or changed.manifest["files"][name] == entry
    history = bundle.item_keys([5, 6])
    assert open_bundle(tmp_path / "next").recommend([history], 9) == bundle.recommend([history], 9)
    again = set_columns(changed, changes, tmp_path / "next", overwrite=True)  # in place
    assert open_bundle(tmp_path / "next").version == again.version


def test_a_damaged_file_is_not_made_good_by_setting_columns(bundle, rows, tmp_path):
    changes = frame_of(rows).select("item", "price")
    set_columns(bundle, changes, tmp_path / "a")
    vectors = tmp_path / "a" / "item_vectors.npy"
    content = bytearray(vectors.read_bytes())
    vectors.unlink()  # it is a link to the file of the bundle
    content[-1] ^= 1
    vectors.write_bytes(content)
    set_columns(open_bundle(tmp_path / "a", verify=False), changes, tmp_path / "b")
    with pytest.raises(DataError, match=r"item_vectors.npy was altered"):
        open_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("changes", "declare", "words"),
    [
        ({"item": ["1"]}, (), "nothing to set"),
        ({"key": ["1"], "price": [1.0]}, (), "need a column 'item'"),
        ({"item": ["x"], "price": [1.0]}, (), "none of the 1 items"),
        ({"item": [None], "price": [1.0]}, (), "every item needs a key"),
        ({"item": ["x", "x"], "price": [1.0, 2.0]}, (), "several rows, such as 'x'"),
        ({"item": ["x"], "size": [1]}, (), "'size' is no filter column"),
        ({"item": ["x"], "price": [1.0]}, ("price",), "already"),
        ({"item": ["x"], "price": [1.0]}, ("a:colour",), "NAME:KIND"),
    ],
)
def test_changes_that_cannot_be_made_are_refused(bundle, tmp_path, changes, declare, words):
    with pytest.raises((ConfigError, DataError), match=words):
        set_columns(bundle, pl.DataFrame(changes), tmp_path / "next", declare=declare)
    assert not (tmp_path / "next").exists()


def test_a_value_of_the_wrong_kind_changes_nothing(bundle, rows, tmp_path):
    changes = pl.DataFrame({"item": [rows[0]["item"]], "price": ["dear"]})
    with pytest.raises(DataError, match="column 'price' has 1 values that are no number"):
        set_columns(bundle, changes, tmp_path / "next")
    assert not (tmp_path / "next").exists()


def test_items_that_come_and_go_keep_their_columns(content_run, rows, tmp_path):
    table = frame_of(rows)
    bundle = export_bundle(
        content_run, tmp_path / "a", graph_formats=(), filter_columns=["price"], items=table
    )
    new = pl.DataFrame({"item": ["fresh", "bare"], "category": ["c1", "c1"], "price": [7.5, None]})
    more = add_items(bundle, new, tmp_path / "b")
    prices = [row["price"] for row in rows]
    assert more.filters.frame["price"].to_list() == [*prices, 7.5, None]
    fewer = remove_items(more, [rows[0]["item"], rows[9]["item"]], tmp_path / "c")
    kept = [price for place, price in enumerate(prices) if place not in (0, 9)]
    assert fewer.filters.frame["price"].to_list() == [*kept, 7.5, None]
    (found,) = fewer.recommend([bundle.item_keys([3])], 5, filter={"price": 7.5})
    assert [item.key for item in found.items] == ["fresh"]


def test_features_of_the_dataset_can_be_columns(content_run, shop, tmp_path):
    bundle = export_bundle(
        content_run, tmp_path / "b", graph_formats=(), filter_columns=["category"]
    )
    values = shop.item_features["category"].values
    column = bundle.filters.frame["category"]
    for one, other in ((3, 4), (10, 11), (50, 51)):
        assert (column[one - 1] == column[other - 1]) == (values[one] == values[other])


def test_a_column_that_is_nowhere_is_refused(content_run, tmp_path):
    with pytest.raises(ConfigError, match="'size' is no item feature of the dataset"):
        export_bundle(content_run, tmp_path / "b", graph_formats=(), filter_columns=["size"])
    assert not (tmp_path / "b").exists()


def test_a_model_without_columns_says_how_to_declare_them(id_bundle):
    with pytest.raises(ConfigError, match="--filter-column NAME"):
        id_bundle.recommend([["1"]], 3, filter={"price": 1})


def test_the_commands_filter_one_history_and_a_file(bundle, rows, tmp_path):
    def run(*words):
        return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)

    (tmp_path / "users.jsonl").write_text(
        json.dumps({"user": "u", "history": bundle.item_keys([5, 6])}) + "\n"
    )
    options = ["-k", 5, "--filter", '{"colour": "red"}', "--exclude", rows[0]["item"]]
    lists = tmp_path / "lists.jsonl"
    done = run(
        "recommend", bundle.path, "--users", tmp_path / "users.jsonl", "--out", lists, *options
    )
    assert done.exit_code == 0
    found = [json.loads(line)["item"] for line in lists.read_text().splitlines()]
    history = ",".join(bundle.item_keys([5, 6]))
    shown = run("recommend", bundle.path, "--history", history, "--json", *options)
    assert [item["key"] for item in json.loads(shown.stdout)["items"]] == found
    assert len(found) == 5
    assert set(found) <= matching(rows, {"colour": "red"}) - {rows[0]["item"]}
    stock = tmp_path / "stock.csv"
    stock.write_text("item,in_stock\n" + "".join(f"{row['item']},no\n" for row in rows))
    done = run("items", "set", bundle.path, stock, "--out", tmp_path / "next")
    assert "in_stock set for 200 items" in done.stdout
    done = run("recommend", tmp_path / "next", "--history", history, "--json", "--filter", '{"in_stock": true}')  # fmt: skip  # noqa: E501
    assert json.loads(done.stdout)["items"] == []
    stock.write_text(f"item,in_stock\n{rows[1]['item']},yes\n")
    done = run("items", "set", tmp_path / "next", stock)  # in place
    assert "in_stock set for 1 items" in done.stdout
    done = run("recommend", tmp_path / "next", "--history", history, "--json", "--filter", '{"in_stock": true}')  # fmt: skip  # noqa: E501
    assert [item["key"] for item in json.loads(done.stdout)["items"]] == [rows[1]["item"]]
    for bad in ("{", "[1]"):
        with pytest.raises(ConfigError, match="--filter"):
            run("recommend", bundle.path, "--history", "1", "--filter", bad)


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"price": [1.0]}),  # too few rows
        pl.DataFrame({"price": pl.Series([1] * 200, dtype=pl.Int8)}),  # a type that is no kind
        b"PAR1 and then nothing",
    ],
    ids=["rows", "type", "bytes"],
)
def test_forged_columns_are_refused(bundle, tmp_path, frame):
    forged = tmp_path / "forged"
    shutil.copytree(bundle.path, forged)
    file = forged / "filters.parquet"
    if isinstance(frame, bytes):
        file.write_bytes(frame)
    else:
        frame.write_parquet(file)
    own = ("checksum", "kind", "format_version", "files")
    facts = {name: value for name, value in bundle.manifest.items() if name not in own}
    (forged / "bundle.json").unlink()
    write_manifest(forged, facts)  # with checksums that are right
    with pytest.raises(BundleError):
        open_bundle(forged)
