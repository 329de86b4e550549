"""Whole runs on a dataset in shards: stopped and resumed, evaluated, exported."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from crossbatch.data import Dataset, PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.evaluation.runs import evaluate_runs
from crossbatch.serving import export_bundle, open_bundle
from crossbatch.training import Interrupted, fit

from .conftest import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    path = tmp_path_factory.mktemp("data") / "sharded"
    source = synthetic_source(SynthOptions(400, 200, 2_000, seed=3))
    prepare(source, path, PrepareOptions(min_item_count=1, min_user_count=1, shards=4))
    return open_dataset(path)


@contextmanager
def stopped_after(steps: int, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if Ctrl-C came after so many steps."""

    @contextmanager
    def flag(**_: Any) -> Iterator[Any]:
        answers = iter([*[False] * (steps - 1), *[True] * 9])
        yield lambda: next(answers)

    with patch.context() as patched:
        patched.setattr("crossbatch.training.run.interrupt_flag", flag)
        yield


@pytest.mark.parametrize("sample_by", ["user", "interaction"])
def test_a_run_that_stops_within_shards_resumes_to_the_bit(
    sharded: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_by: str
) -> None:
    """60 steps of 32 rows over some 1,300 samples: every shard is visited, and a second pass."""
    recipe = replace(RECIPE, train=replace(RECIPE.train, sample_by=sample_by))
    assert sharded.num_samples() < 60 * 32
    whole = fit(sharded, recipe, tmp_path / "whole")
    for steps in (7, 9, 21):
        with stopped_after(steps, monkeypatch), pytest.raises(Interrupted):
            fit(open_dataset(sharded.path), recipe, tmp_path / "again", resume=True)
    resumed = fit(open_dataset(sharded.path), recipe, tmp_path / "again", resume=True)
    for name in TIMES:
        whole.pop(name, None)
        resumed.pop(name, None)
    assert resumed == whole
    one, other = (load_file(best_file(tmp_path / name)) for name in ("whole", "again"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def best_file(run: Path) -> Path:
    (path,) = (run / "best").glob("*.safetensors")
    return path


def test_a_run_is_evaluated_and_exported_without_its_shards(
    sharded: Dataset, tmp_path: Path
) -> None:
    short = replace(RECIPE, train=replace(RECIPE.train, max_steps=20))
    result = fit(sharded, short, tmp_path / "run")
    folder = sharded.path / "shards"
    folder.rename(tmp_path / "elsewhere")  # training alone needs them
    try:
        (entry,) = evaluate_runs([tmp_path / "run"], "test").values()
        assert entry["metrics"]["recall@20"] == result["test"]["recall@20"]
        export_bundle(tmp_path / "run", tmp_path / "bundle")
        bundle = open_bundle(tmp_path / "bundle")
        assert bundle.num_items == sharded.num_items
    finally:
        (tmp_path / "elsewhere").rename(folder)
