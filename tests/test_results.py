"""Results of Python calls: attributes beside keys, frames; paths may be plain strings."""

import pandas as pd
import pytest

from crossbatch import Recipe, fit, open_dataset
from crossbatch.data import Dataset, PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.errors import ConfigError
from crossbatch.results import FitResult
from crossbatch.serving import export_bundle, open_bundle

SETS = ["model.name=youtube_dnn", "sampler.name=in_batch", "model.dim=8", "train.max_steps=20"]
SETS += ["train.batch_size=32", "train.eval_every=20", "train.log_every=20"]


def test_keys_are_attributes_and_rows_of_a_frame():
    measured = {"test": {"recall@50": 0.25}, "test_ci": {"recall@50": [0.2, 0.3]}}
    result = FitResult({"model": "mind", "steps": 3} | measured)
    assert result["test"] is result.test
    assert result.get("best_step") is None
    assert "steps" in dir(result)
    with pytest.raises(AttributeError, match="no 'valid'; it has model, steps, test, test_ci"):
        _ = result.valid
    frame = result.to_frame("pandas")
    assert isinstance(frame, pd.DataFrame)
    assert frame.to_dict("records") == [
        {"split": "test", "metric": "recall@50", "value": 0.25, "low": 0.2, "high": 0.3}
    ]
    assert result.to_frame("pyarrow").num_rows == 1
    with pytest.raises(ConfigError, match="library must be one of polars, pandas, pyarrow"):
        result.to_frame("spark")


def test_strings_are_paths_everywhere_and_objects_say_what_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text("[train]\nseed = 3\n")
    recipe = Recipe.load("small.toml", SETS)
    assert recipe.train.seed == 3
    prepare(synthetic_source(SynthOptions(80, 40, 1200, 0)), "shop", PrepareOptions())
    assert repr(Dataset("shop")).startswith("<Dataset shop: 80 users, 40 items, 1,2")
    result = fit(open_dataset("shop"), recipe, "run")
    assert result.test == result["test"]
    assert (
        "FitResult of youtube_dnn: best at step 20 of 20; valid recall@50 1.0000, ndcg@50 0."
        in repr(result)
    )
    bundle = export_bundle("run", "shop.bundle", graph_formats=())
    assert repr(open_bundle("shop.bundle")) == repr(bundle)
    assert repr(bundle).startswith("<Bundle shop.bundle: youtube_dnn, 40 items, version ")
    (tmp_path / "moved").mkdir()
    for name in ("shop", "run"):
        (tmp_path / name).rename(tmp_path / "moved" / name)
    again = export_bundle("moved/run", "again.bundle", graph_formats=())
    assert again.item_vectors.equal(bundle.item_vectors)
