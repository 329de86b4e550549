"""From a CSV of clicks to recommendations: `python examples/csv_to_recommendations.py [CSV]`.

The CSV has columns user_id, sku and ts; without one, a small log is generated. Writes to --out:
the dataset, the run with its journal and metrics, and a bundle for `crossbatch serve`.
"""

import argparse
import tempfile
from pathlib import Path

import polars as pl

from crossbatch import Recipe, fit, open_dataset
from crossbatch.data import PrepareOptions, ReadOptions, open_source, prepare
from crossbatch.data.synthetic import SynthOptions, write_raw
from crossbatch.serving import export_bundle


def generated_csv(folder: Path) -> Path:
    """Write a generated log as a CSV file."""
    raw = folder / "raw"
    write_raw(SynthOptions(users=1500, items=600, interactions=30_000, seed=7), raw)
    log = pl.read_parquet(raw / "interactions" / "*.parquet")
    log = log.select(user_id="user", sku="item", ts="timestamp")
    log.write_csv(folder / "clicks.csv")
    return folder / "clicks.csv"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=1000)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="crossbatch-"))
    out.mkdir(parents=True, exist_ok=True)
    csv = given.csv or generated_csv(out)

    # 1. Read, filter and split the log into a memory-mapped dataset folder.
    source = open_source(csv, options=ReadOptions(user="user_id", item="sku", time="ts"))
    prepare(source, out / "dataset", PrepareOptions())
    dataset = open_dataset(out / "dataset")
    print(f"{dataset.num_users:,} users, {dataset.num_items:,} items")

    # 2. Train. A recipe is a dictionary here and a TOML file on the command line.
    recipe = Recipe.from_dict(
        {
            "model": {"name": "youtube_dnn", "dim": 32},
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
    popularity = result["baselines"]["popularity"]["test"]["recall@50"]
    print(f"test recall@50 {result['test']['recall@50']:.3f}, popularity alone {popularity:.3f}")

    # 3. Recommend. Items are named by the ids of the CSV.
    bundle = export_bundle(out / "run", out / "bundle")
    history = dataset.item_keys([1, 2, 3])
    (answer,) = bundle.recommend([history], k=5)
    print(f"after {', '.join(history)}: {', '.join(item.key for item in answer.items)}")
    print(f"try it by hand: crossbatch serve {out / 'bundle'}")


if __name__ == "__main__":
    main()
