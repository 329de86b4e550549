"""Add a new item to a trained model by its content: `python examples/content_cold_start.py`.

Trains a content tower on items with titles and categories and exports a bundle. Then adds an item
without any clicks: its vector is computed from its title and category, without further training,
and its nearest neighbours are items of the same category.
"""

import argparse
import tempfile
from pathlib import Path

import polars as pl

from crossbatch import Recipe, fit, open_dataset
from crossbatch.data import PrepareOptions, open_source, prepare
from crossbatch.data.synthetic import SynthOptions, write_raw
from crossbatch.serving import export_bundle
from crossbatch.serving.bundle.change_items import add_items


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="crossbatch-"))

    # A twentieth of the items is withheld from training, to measure recommendations by content.
    write_raw(SynthOptions(users=1500, items=600, interactions=30_000, seed=7), out / "raw")
    prepare(open_source(out / "raw"), out / "dataset", PrepareOptions(cold_items=0.05))
    dataset = open_dataset(out / "dataset")
    recipe = Recipe.from_dict(
        {
            # Histories are read through the item tower too, so that new items in them count.
            "model": {"name": "youtube_dnn", "dim": 32, "history": "item_tower"},
            "sampler": {
                "name": "cross_batch",
                "capacity": 1024,
                "warmup_steps": 100,
                "item_gradient": "balanced",
            },
            "loss": {"temperature": 0.2},
            "train": {"max_steps": given.steps, "eval_every": 200, "patience": 3, "threads": 1},
        }
    )
    result = fit(dataset, recipe, out / "run")
    share = result["test"]["cold_recall@50"]
    chance = 50 / dataset.num_items
    print(f"recall@50 of items that training never saw: {share:.3f} (by chance {chance:.3f})")

    # A new item with the content of an existing one.
    bundle = export_bundle(out / "run", out / "bundle")
    catalogue = pl.read_parquet(out / "raw" / "items.parquet")
    categories = dict(catalogue.select("item", "category").iter_rows())
    twin = catalogue.filter(item=dataset.item_keys([1])[0])
    bigger = add_items(bundle, twin.with_columns(item=pl.lit("brand-new")), out / "bigger")
    print(f"{bundle.num_items:,} items before, {bigger.num_items:,} after")
    print(f"like the brand new {twin['title'][0]!r} ({twin['category'][0]}):")
    for item in bigger.similar("brand-new", 5):
        print(f"  {item.score:.3f}  {item.title} ({categories[item.key]})")


if __name__ == "__main__":
    main()
