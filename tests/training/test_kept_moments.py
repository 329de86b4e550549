"""Moments of an optimiser that come along to a later run: rows, counters, and what is refused."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from crossbatch.data import PrepareOptions, append, open_dataset, open_source, prepare
from crossbatch.errors import ConfigError, DataError
from crossbatch.fitting import read_earlier
from crossbatch.models import EmbeddingTable
from crossbatch.serving import export_bundle
from crossbatch.training import Interrupted, checkpoint, fit
from crossbatch.training.build import build_trainer, draw_batches, resolve
from crossbatch.training.moved_rows import moved_moments, moved_rows
from crossbatch.training.optimizers.adam import LEVEL_STEPS, Adam
from crossbatch.training.run_folder import RunFolder, open_run
from crossbatch.training.warm_start import begin

from .conftest import RECIPE

SAVE = RECIPE.changed(["train.max_steps=40", "train.moments=save", "sampler.name=in_batch"])
SAVE = replace(SAVE, sampler={"name": "in_batch"})
KEEP = SAVE.changed(["train.moments=keep"])


# --- rows and counters, against torch's optimisers that were never interrupted ---


class Scores(torch.nn.Module):
    """A table and a layer: the least that has both kinds of moments."""

    def __init__(self, rows):
        super().__init__()
        torch.manual_seed(0)
        self.table = EmbeddingTable(rows, 3)
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, ids):
        return self.layer(self.table(ids)).pow(2).sum()


ROWS = torch.tensor([0, 3, -1, 1])  # of the second table: 2 is gone, one is new
FIRST = [[0, 1], [1, 3], [2, 0], [1, 1], [3, 2]]  # ids of each step, in the first table
SECOND = [[1, 3], [2, 1], [0, 2], [3, 0], [2, 2]]  # in the second one


def in_two_runs(**options):
    """Weights after the steps of both tables, the second optimiser with moments of the first."""
    model = Scores(4)
    start = model.table.weight.detach()[0].clone()
    optimizer = Adam(model, lr=0.1, **options)
    for ids in FIRST:
        model(torch.tensor(ids)).backward()
        optimizer.step()
    optimizer.flush()
    moments = {name: value.clone() for name, value in optimizer.moments().items()}
    later = Scores(4)
    weights = model.state_dict()
    weights["table.weight"] = moved_rows(weights["table.weight"], ROWS, start)
    later.load_state_dict(weights)
    continued = Adam(later, lr=0.1, steps_before=len(FIRST), **options)
    continued.load_moments(moved_moments(moments, {"table.weight": ROWS}))
    for ids in SECOND:
        later(torch.tensor(ids)).backward()
        continued.step()
    continued.flush()
    return later


def uninterrupted(make):
    """The same by torch, over a table of all five rows in float64; the fifth is read at last."""
    model = Scores(4).double()
    table = torch.cat([model.table.weight, model.table.weight[:1]]).detach().requires_grad_()
    layer = [parameter.detach().requires_grad_() for parameter in model.layer.parameters()]
    optimizers = [make([table]), torch.optim.Adam(layer, lr=0.1)]
    for ids in [*FIRST, *([[0, 3, 4, 1][i] for i in step] for step in SECOND)]:
        rows = torch.nn.functional.embedding(
            torch.tensor(ids), table, sparse=isinstance(optimizers[0], torch.optim.SparseAdam)
        )
        torch.nn.functional.linear(rows, *layer).pow(2).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return table[[0, 3, 4, 1]].detach(), layer


@pytest.mark.parametrize(
    ("semantics", "make"),
    [
        ("dense", lambda weights: torch.optim.Adam(weights, lr=0.1)),
        ("lazy", lambda weights: torch.optim.SparseAdam(weights, lr=0.1)),
    ],
)
def test_two_runs_are_one_of_torch(semantics, make, with_and_without_numba):
    found = in_two_runs(semantics=semantics)
    table, (weight, bias) = uninterrupted(make)
    torch.testing.assert_close(found.table.weight.double(), table, rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(found.layer.weight.double(), weight, rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(found.layer.bias.double(), bias, rtol=2e-5, atol=2e-6)


def test_sums_of_squares_of_adagrad_come_along():
    model = Scores(4)
    optimizer = Adam(model, tables="adagrad")
    optimizer.tables["table"].squares.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    later = Adam(Scores(4), tables="adagrad", steps_before=7)
    later.load_moments(moved_moments(optimizer.moments(), {"table.weight": ROWS}))
    assert later.tables["table"].squares.tolist() == [1.0, 4.0, 0.0, 2.0]
    assert later.tables["table"].steps == later.steps == 7
    with pytest.raises(ValueError, match="moments of RowAdam are first, second, got"):
        Adam(Scores(4), steps_before=7).load_moments(optimizer.moments())


def test_the_schedule_begins_anew():
    model = Scores(4)
    optimizer = Adam(model, lr=0.1, schedule="cosine", total_steps=4, steps_before=1000)
    rates = []
    for _ in range(4):
        model(torch.tensor([1, 2])).backward()
        rates.append(optimizer.step())
    expected = [0.05 * (1 + math.cos(math.pi * step / 4)) for step in (1, 2, 3, 4)]
    assert rates == pytest.approx(expected)


def test_more_steps_than_are_counted_change_nothing():
    assert 1 - 0.999**LEVEL_STEPS == 1.0


# --- runs ---


def test_a_run_on_the_same_items_continues_to_the_bit(dataset, tmp_path):
    recipe = resolve(KEEP, dataset)
    trainer = build_trainer(recipe, dataset)
    batches = draw_batches(recipe.train, dataset)
    for _ in range(20):
        trainer.train_step(next(batches))
    trainer.optimizer.flush()
    fit(dataset, SAVE.changed(["train.max_steps=20"]), tmp_path / "run")  # of the same batches
    tensors, _ = checkpoint.load(tmp_path / "run" / "best")
    for name, value in trainer.optimizer.moments().items():
        assert torch.equal(tensors[f"moments.{name}"], value), name

    folder = RunFolder(tmp_path / "next", resume=False)
    start = begin(tmp_path / "run", folder, read_earlier, moments=True)
    folder.close()
    assert start.steps == 20
    later = build_trainer(resolve(start.applied_to(KEEP), dataset), dataset, steps_before=20)
    said = start.load_into(later.model, dataset, later.optimizer)
    assert "with the moments of its optimiser" in said
    for _ in range(10):
        batch = next(batches)
        trainer.train_step(batch)
        later.train_step(batch)
    for each in (trainer, later):
        each.optimizer.flush()
    found = later.model.state_dict()
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, found[name]), name


def test_a_run_with_moments_resumes_to_the_bit(dataset, tmp_path):
    fit(dataset, SAVE, tmp_path / "first")
    whole = fit(dataset, KEEP, tmp_path / "whole", start_from=tmp_path / "first")
    assert whole["start"]["steps"] == checkpoint.load(tmp_path / "first" / "best")[1]["step"]

    def stop(trainer, step):
        if step == 30:  # after the first checkpoint
            raise Interrupted("stopped")

    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(dataset, KEEP, out, start_from=tmp_path / "first", probe=stop)
    shutil.rmtree(tmp_path / "first" / "best")  # no longer needed
    fit(dataset, KEEP, out, start_from=tmp_path / "first", resume=True)
    first, second = (checkpoint.load(path / "best")[0] for path in (tmp_path / "whole", out))
    assert set(first) == set(second)
    assert any(name.startswith("moments.") for name in first)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_moments_that_are_not_there_are_refused_in_a_sentence(dataset, tmp_path):
    plain = SAVE.changed(["train.moments=anew", "train.max_steps=20"])
    fit(dataset, plain, tmp_path / "plain")
    tensors, _ = checkpoint.load(tmp_path / "plain" / "best")
    assert not any(name.startswith("moments.") for name in tensors)
    fit(dataset, SAVE.changed(["train.max_steps=20"]), tmp_path / "saved")
    export_bundle(tmp_path / "saved", tmp_path / "bundle", graph_formats=())
    for path in ("plain", "bundle"):
        with pytest.raises(DataError, match=r'is "keep", but .* has no moments .* to "save"'):
            fit(dataset, KEEP, tmp_path / "next", start_from=tmp_path / path)
        shutil.rmtree(tmp_path / "next")
    other = KEEP.changed(["train.tables=adagrad"])
    with pytest.raises(DataError, match=r"of another optimiser \(moments of RowAdagrad are"):
        fit(dataset, other, tmp_path / "next", start_from=tmp_path / "saved")
    with pytest.raises(ConfigError, match=r'train.tables="sharded" stores no moments'):
        KEEP.changed(["train.tables=sharded"])
    with pytest.raises(ConfigError, match=r"train.moments"):
        KEEP.changed(["train.moments=all"])


# --- a dataset that has grown in place ---


def test_a_run_whose_dataset_has_grown_in_place(tmp_path):
    """Items keep their rows; new ones start from the mean, with moments of zero."""
    generator = np.random.default_rng(0)
    for day, items in enumerate((30, 40)):
        rows = {
            "user": [f"u{user}" for user in range(60) for _ in range(6)],
            "item": [f"i{item}" for item in generator.integers(items, size=360)],
            "time": [360 * day + place for place in range(360)],
        }
        pl.DataFrame(rows).write_parquet(tmp_path / f"{day}.parquet")
    options = PrepareOptions(1, 1, split="leave_last_out", growing=True)
    prepare(open_source(tmp_path / "0.parquet"), tmp_path / "data", options)
    recipe = SAVE.changed(["train.max_steps=8", "train.eval_every=4", "train.batch_size=16"])
    before = open_dataset(tmp_path / "data")
    fit(before, recipe, tmp_path / "run")
    tensors, _ = checkpoint.load(tmp_path / "run" / "best")
    keys = before.item_keys(range(before.num_items + 1))
    for name in ("data", "run"):
        shutil.copytree(tmp_path / name, tmp_path / "copies" / name)
    append(
        open_source(tmp_path / "1.parquet"), tmp_path / "data", tmp_path / "data", overwrite=True
    )

    dataset = open_dataset(tmp_path / "data")
    assert dataset.num_items > before.num_items
    folder = RunFolder(tmp_path / "next", resume=False)
    start = begin(tmp_path / "run", folder, read_earlier, moments=True)
    folder.close()
    later = build_trainer(
        resolve(start.applied_to(KEEP), dataset), dataset, steps_before=start.steps
    )
    said = start.load_into(later.model, dataset, later.optimizer)
    assert f"{before.num_items} items are known to it" in said
    assert dataset.item_keys(range(len(keys))) == keys
    table, moments = "item_tower.table.weight", later.optimizer.moments()
    assert torch.equal(later.model.state_dict()[table][: len(keys)], tensors[f"model.{table}"])
    for name in ("first", "second"):
        assert torch.equal(
            moments[f"{table}.{name}"][: len(keys)], tensors[f"moments.{table}.{name}"]
        )
        assert not moments[f"{table}.{name}"][len(keys) :].any()
    touched = later.optimizer.tables["item_tower.table"].touched
    assert not touched[len(keys) :].any()

    short = KEEP.changed(["train.max_steps=8"])
    fit(dataset, short, tmp_path / "next", start_from=tmp_path / "run", resume=True)
    with pytest.raises(DataError, match=r"is not the dataset that .* was trained on"):
        open_run(tmp_path / "run")
    assert open_run(tmp_path / "copies" / "run").dataset.path == tmp_path / "copies" / "data"
    other = json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert list(other["grown_from"].values()) == [before.num_items]
