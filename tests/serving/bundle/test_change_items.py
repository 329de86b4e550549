"""Items added to and removed from a bundle without training: all others score as before."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.data import PrepareOptions, open_dataset, open_source, prepare
from crossbatch.data.readers import ReadOptions
from crossbatch.data.readers.source import Column
from crossbatch.errors import DataError
from crossbatch.models import mean_id_vector
from crossbatch.retrieval import ExactIndex
from crossbatch.serving import export_bundle, open_bundle
from crossbatch.serving.bundle.change_items import (
    add_items,
    encode_content,
    remove_items,
)
from crossbatch.serving.from_run import run_recommender
from crossbatch.training.run_folder import open_run

from ..conftest import trained

NEW = pl.DataFrame(
    {
        "item": ["new1", "new2"],
        "title": ["Silver Harbour", None],
        "category": ["c1", "no such category"],
        "price": [3.5, None],
    }
)


@pytest.fixture(scope="module")
def larger(light_bundle, tmp_path_factory):
    return add_items(light_bundle, NEW, tmp_path_factory.mktemp("larger") / "bundle")


def test_new_items_stand_after_the_old_ones(light_bundle, larger):
    assert larger.num_items == 202
    assert larger.item_keys([200, 201, 202]) == [*light_bundle.item_keys([200]), "new1", "new2"]
    assert larger.item_titles([201, 202]) == ["Silver Harbour", "new2"]
    assert larger.item_ids(["new2", "new1"]).tolist() == [202, 201]
    assert larger.item_counts[201:].tolist() == [0, 0]
    assert torch.equal(larger.item_vectors[:201], light_bundle.item_vectors)
    assert larger.manifest["items"] == {"count": 202, "trained": 200}
    (change,) = larger.manifest["origin"]["changes"]
    assert change == {"from": light_bundle.version, "added": 2, "removed": 0}
    assert "2 of them added by their content" in (larger.path / "README.md").read_text()


def test_a_content_vector_is_the_tower_with_the_mean_id(content_saved, light_bundle):
    """By hand: an old item's content, with the mean id row instead of its own."""
    tower = content_saved.towers.item_tower
    counts = torch.from_numpy(np.array(content_saved.dataset.item_counts)).double()
    mean = sum(counts[i] * tower.table.weight[i].double() for i in range(1, 201)) / counts.sum()
    with torch.no_grad():
        ids = torch.arange(1, 201)
        content = tower.content(ids)
        joined = torch.cat([mean.float().expand(200, -1), content], dim=1)
        expected = torch.nn.functional.normalize(tower.layers(joined), dim=1)
    raw = raw_items(content_saved.dataset)
    found, _ = encode_content(light_bundle, raw)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def raw_items(dataset):
    """The content of all items as it was before it was encoded."""
    from crossbatch.data.readers.source import Tally
    from crossbatch.data.synthetic import SynthOptions, synthetic_source

    source = synthetic_source(SynthOptions(users=400, items=200, interactions=6000, seed=3))
    for _ in source.batches(Tally(0.0)):
        pass  # the items are known once the log has been read
    keys = pl.Series("key", dataset.item_keys(range(1, dataset.num_items + 1)))
    table = source.item_table(keys, Tally(0.0)).with_columns(pl.col("key").cast(pl.String))
    return pl.DataFrame({"key": keys}).join(table, on="key", how="left", maintain_order="left")


def test_the_mean_id_vector_counts_each_item_as_often_as_it_was_chosen():
    table = torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 2.0]])
    found = mean_id_vector(table, torch.tensor([0, 3, 1, 5, 5]))
    assert found.tolist() == [0.75, 0.5]
    assert mean_id_vector(table, torch.tensor([0, 0, 0])).tolist() == [0.0, 0.0]


def test_a_removed_item_is_unknown_everywhere(light_bundle, larger, tmp_path):
    gone = light_bundle.item_keys([1, 77, 200])
    smaller = remove_items(larger, gone, tmp_path / "bundle")
    assert smaller.num_items == 199
    assert smaller.item_ids(gone).tolist() == [0, 0, 0]
    assert smaller.manifest["items"] == {"count": 199, "trained": 197}
    history = light_bundle.item_keys([5, 9])
    (found,) = smaller.recommend([history], 199 - 2)
    (before,) = larger.recommend([history], 202 - 2)
    expected = [item.key for item in before.items if item.key not in gone]
    assert [item.key for item in found.items] == expected
    (unknown,) = smaller.recommend([[gone[0], history[0]]], 5)
    assert unknown.unknown == [gone[0]]


def test_an_item_removed_and_added_again_has_its_content_vector(
    content_saved, light_bundle, tmp_path
):
    """Items withheld from training come back by content, through the raw table."""
    raw = raw_items(content_saved.dataset).rename({"key": "item"})
    chosen = raw.filter(pl.Series(np.array(content_saved.dataset.item_counts)[1:] == 0))
    assert len(chosen) == 10
    without = remove_items(light_bundle, chosen["item"].to_list(), tmp_path / "a")
    again = add_items(without, chosen, tmp_path / "b")
    ids = torch.from_numpy(again.item_ids(chosen["item"].to_list()))
    expected, _ = encode_content(
        light_bundle, chosen
    )  # they were never chosen: the mean is the same
    torch.testing.assert_close(again.item_vectors[ids], expected)
    assert again.manifest["items"] == {"count": 200, "trained": 190}
    assert [change["removed"] for change in again.manifest["origin"]["changes"]] == [10, 0]


def test_added_items_count_in_histories_read_through_content(larger):
    (found,) = larger.recommend([["new1"]], 5)
    assert not found.popular
    assert "new1" not in {item.key for item in found.items}


@pytest.fixture(scope="module")
def described(shop, tmp_path_factory):
    """Histories are read through ids and content side by side."""
    folder = tmp_path_factory.mktemp("described")
    options = {"name": "youtube_dnn", "history": "content", "user_features": []}
    return export_bundle(trained(shop, folder / "run", **options), folder / "bundle")


def test_histories_of_ids_and_content_are_served_as_trained(described, shop):
    saved = open_run(described.path.parent / "run")
    history = torch.tensor([[3, 9, 12], [150, 0, 0]])
    with torch.no_grad():
        expected = saved.towers.users(history)
    torch.testing.assert_close(described.interests(history, None), expected)
    assert described.history_vectors.shape[1] == saved.towers.item_tower.width > described.dim
    keys = [shop.item_keys([3, 9, 12])]
    assert described.recommend(keys, 9) == run_recommender(saved).recommend(keys, 9)


def test_added_items_count_in_histories_of_ids_and_content(described, tmp_path):
    bundle = add_items(described, NEW, tmp_path / "bundle")
    assert torch.equal(bundle.history_vectors[:201], described.history_vectors)
    tower = open_run(described.path.parent / "run").towers.item_tower
    counts = torch.from_numpy(described.item_counts.copy())
    mean = mean_id_vector(tower.table.weight.detach(), counts)
    torch.testing.assert_close(bundle.history_vectors[201, : tower.table.dim], mean)
    (found,) = bundle.recommend([["new1"]], 5)
    assert not found.popular
    smaller = remove_items(bundle, [*bundle.item_keys([1]), "new1"], tmp_path / "smaller")
    kept = bundle.history_vectors[[0, *range(2, 201), 202]]
    assert torch.equal(smaller.history_vectors, kept)


@pytest.fixture(scope="module")
def tied(shop, tmp_path_factory):
    """Content in the item tower, but histories read through ids."""
    folder = tmp_path_factory.mktemp("tied")
    run = trained(shop, folder / "run", name="gru4rec", user_features=[], normalize=True)
    return export_bundle(run, folder / "bundle", graph_formats=())


def test_added_items_are_skipped_in_histories_read_through_ids(tied, tmp_path):
    bundle = add_items(tied, NEW, tmp_path / "bundle")
    old = bundle.item_keys([3, 8])
    (alone,) = bundle.recommend([old], 20)
    (beside,) = bundle.recommend([["new1", *old, "new2"]], 20)
    assert beside.unknown == []
    rest = [item.key for item in alone.items if item.key not in ("new1", "new2")]
    assert [item.key for item in beside.items][: len(rest)] == rest
    (nothing,) = bundle.recommend([["new1"]], 5)
    assert nothing.popular
    smaller = remove_items(bundle, [old[0], "new1"], tmp_path / "smaller")
    assert smaller.manifest["items"] == {"count": 200, "trained": 199}
    (after,) = smaller.recommend([[old[1]]], 10, exclude_seen=False)
    (before,) = bundle.recommend([[old[1]]], 12, exclude_seen=False)
    kept = [item.key for item in before.items if item.key not in (old[0], "new1")][:10]
    assert [item.key for item in after.items] == kept


def test_graphs_follow_the_items(content_bundle, tmp_path):
    """The graph reads item ids, and these have moved."""
    gone = content_bundle.item_keys([1])
    smaller = remove_items(content_bundle, gone, tmp_path / "bundle")
    program = torch.export.load(smaller.path / "user_tower.pt2").module()
    history = torch.zeros(2, 20, dtype=torch.long)
    history[:, :2] = torch.tensor([[4, 8], [9, 0]])
    numeric, categorical = torch.zeros(2, 2), torch.zeros(2, dtype=torch.long)
    old = torch.where(history > 0, history + 1, 0)
    before = torch.export.load(content_bundle.path / "user_tower.pt2").module()
    torch.testing.assert_close(
        program(history, numeric, categorical), before(old, numeric, categorical)
    )


def test_the_cells_of_an_approximate_index_are_kept(content_run, tmp_path):
    pytest.importorskip("faiss")
    bundle = export_bundle(content_run, tmp_path / "a", index="ivf", recall=0.9, graph_formats=())
    larger = add_items(bundle, NEW, tmp_path / "b")
    assert larger.manifest["index"]["name"] == "ivf"
    assert larger.manifest["index"]["recall"] >= 0.9
    assert larger.index.num_cells == bundle.index.num_cells
    interests = larger.item_vectors[None, 201:202]
    assert larger.index.search(interests, 3).item_ids[0, 0] == 201
    assert ExactIndex(larger.item_vectors).search(interests, 1).item_ids[0, 0] == 201


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (NEW.drop("item"), "need a column 'item'"),
        (NEW.with_columns(item=pl.lit("same")), "1 items have several rows, such as 'same'"),
        (NEW.with_columns(item=pl.Series(["x", None])), "every item needs a key"),
        (NEW.with_columns(item=pl.Series(["x", ""])), "every item needs a key"),
        (NEW.clear(), "every item needs a key"),
        (NEW.select("item"), "the model reads title, category, tags, price"),
        (NEW.select("item", colour=pl.lit("red")), "columns item, colour"),
    ],
)
def test_items_that_cannot_be_added(light_bundle, tmp_path, table, message):
    with pytest.raises(DataError, match=message):
        add_items(light_bundle, table, tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_other_mistakes_are_named(light_bundle, id_bundle, tmp_path):
    known = NEW.with_columns(item=pl.Series(light_bundle.item_keys([1, 2])))
    with pytest.raises(DataError, match="2 of the items are in the bundle"):
        add_items(light_bundle, known, tmp_path / "bundle")
    with pytest.raises(DataError, match="knows ids only"):
        add_items(id_bundle, NEW, tmp_path / "bundle")
    with pytest.raises(DataError, match="1 of the items are not in the bundle: 'nobody'"):
        remove_items(light_bundle, ["nobody"], tmp_path / "bundle")
    with pytest.raises(DataError, match="needs at least one"):
        remove_items(id_bundle, id_bundle.item_keys(range(1, 201)), tmp_path / "bundle")
    with pytest.raises(DataError, match="already exists"):
        add_items(light_bundle, NEW, light_bundle.path)
    assert not list(tmp_path.iterdir())


def test_a_bundle_may_replace_itself(id_bundle, id_run, tmp_path):
    bundle = export_bundle(id_run, tmp_path / "b", graph_formats=())
    key = bundle.item_keys([9])
    changed = remove_items(bundle, key, tmp_path / "b", overwrite=True)
    assert changed.num_items == 199
    assert open_bundle(tmp_path / "b").item_ids(key).tolist() == [0]
    assert bundle.recommend([key], 3), "the old one is still mapped, and still answers"


DATA = Path(os.environ.get("CROSSBATCH_DATA", "../shared/data")) / "amazon2014-beauty"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data at {DATA}")
def test_real_cold_items_are_found_by_their_content(tmp_path):
    """Amazon Beauty: a twentieth of the items is unknown to training and added from raw content.

    Popularity never finds them, chance finds 50 / 12,086 = 0.4 % of them in a list of 50.
    """
    options = ReadOptions(
        items=DATA / "items_attributes.parquet",
        title="title",
        item_columns=(Column("attributes", "multi_valued", " "), Column("title", "text")),
    )
    source = open_source(DATA / "interactions.parquet", "table", options)
    prepare(source, tmp_path / "data", PrepareOptions(cold_items=0.05))
    dataset = open_dataset(tmp_path / "data")
    train = {"batch_size": 256, "max_steps": 1500, "eval_every": 1500, "lr": 0.001, "adam": "lazy"}
    model = {"dim": 32, "history": "item_tower", "normalize": True, "history_dropout": 0.3}
    trained(dataset, tmp_path / "run", train=train, temperature=0.2, **model)
    saved = open_run(tmp_path / "run")
    bundle = export_bundle(tmp_path / "run", tmp_path / "a", graph_formats=())
    cold = np.flatnonzero(np.array(dataset.item_counts)[1:] == 0) + 1
    keys = dataset.item_keys(cold)
    raw = pl.read_parquet(DATA / "items_attributes.parquet").with_columns(pl.col("item").cast(str))
    without = remove_items(bundle, keys, tmp_path / "b")
    again = add_items(without, raw.filter(pl.col("item").is_in(keys)), tmp_path / "c")
    hits = targets = listed = 0
    for batch in saved.dataset.eval_batches("test", history_length=20):
        history = [[i for i in row if i] for row in batch.history.tolist()]
        lists = again.recommend([dataset.item_keys(row) for row in history], 50)
        for found, wanted in zip(lists, batch.targets, strict=True):
            chosen = set(dataset.item_keys(wanted[np.isin(wanted, cold)].tolist()))
            shown = {item.key for item in found.items}
            hits, targets = hits + len(chosen & shown), targets + len(chosen)
            listed += len(shown & set(keys))
    assert targets > 200
    assert hits / targets > 0.04, "ten times chance"
    assert listed < 0.15 * 50 * saved.dataset.num_eval_users("test"), (
        "and they do not crowd out other items"
    )
