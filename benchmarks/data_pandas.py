"""The straightforward pandas version of `crossbatch prepare`, for `data_prepare.py`.

    python data_pandas.py LOG OUT        # in an environment with pandas and pyarrow

One pass of the min-count filters, ids by popularity, seeded shuffle of users, chronological
sequences with shuffled ties, 8:1:1 split, frequencies and the exact
sampling distribution of positives.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["reviewerID", "asin", "unixReviewTime"]
MIN_COUNT, MIN_HISTORY = 5, 1


def load(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        return pd.read_parquet(path, columns=COLUMNS)
    # in chunks, so that the text of the whole file is never in memory
    pieces = pd.read_json(path, lines=True, chunksize=200_000)
    return pd.concat([piece[COLUMNS] for piece in pieces], ignore_index=True)


def prepare(log: pd.DataFrame, out: Path) -> None:
    log.columns = ["user", "item", "time"]
    item_counts = log["item"].value_counts()
    log = log[log["item"].isin(item_counts.index[item_counts >= MIN_COUNT])]
    user_counts = log["user"].value_counts()
    log = log[log["user"].isin(user_counts.index[user_counts >= MIN_COUNT])].copy()

    rng = np.random.default_rng(1230)
    items = item_counts.index[item_counts >= MIN_COUNT]
    users = rng.permutation(log["user"].unique())
    log["item_id"] = log["item"].map(pd.Series(range(1, len(items) + 1), index=items))
    log["user_id"] = log["user"].map(pd.Series(range(len(users)), index=users))
    log["tie"] = rng.random(len(log))
    log = log.sort_values(["user_id", "time", "tie"])

    log["length"] = log.groupby("user_id")["item_id"].transform("size")
    log["position"] = log.groupby("user_id").cumcount()
    num_train = int(0.8 * len(users))
    train = log[log["user_id"] < num_train]
    samples = train[train["position"] >= MIN_HISTORY]
    weights = 1.0 / (samples["length"] - MIN_HISTORY) / num_train
    probability = weights.groupby(samples["item_id"]).sum()
    lengths = log.groupby("user_id").size()

    out.mkdir(parents=True)
    np.save(out / "items.npy", log["item_id"].to_numpy(np.int32))
    np.save(out / "times.npy", log["time"].to_numpy())
    np.save(out / "offsets.npy", np.concatenate([[0], lengths.cumsum().to_numpy()]))
    np.save(out / "cuts.npy", (lengths * 4 // 5).to_numpy())
    probability = probability.reindex(range(len(items) + 1), fill_value=0)
    np.save(out / "sampler_law.npy", probability.to_numpy())
    frequency = train["item_id"].value_counts()
    np.save(
        out / "item_counts.npy", frequency.reindex(range(len(items) + 1), fill_value=0).to_numpy()
    )
    pd.DataFrame({"key": items}).to_parquet(out / "item_keys.parquet")
    pd.DataFrame({"key": users}).to_parquet(out / "user_keys.parquet")


if __name__ == "__main__":
    prepare(load(Path(sys.argv[1])), Path(sys.argv[2]))
