"""`train.min_history` and `train.sample_by`: what is drawn, and its log q."""

import json
import math
from collections import Counter
from itertools import islice

import pytest
import torch

from crossbatch.training import Interrupted, fit
from crossbatch.training.build import build_sampler, build_trainer, draw_batches, resolve

from .conftest import RECIPE
from .test_run import stopped_after

OPTIONS = [(least, by) for least in (1, 4, 20) for by in ("user", "interaction")]


def with_options(least, by, *more):
    options = [f"train.min_history={least}", f"train.sample_by={by}", "train.batch_size=16"]
    return RECIPE.changed([*options, *more])


def targets(dataset, least):
    """The targets of every user of the training part, the first 80 % of the users."""
    users = range(int(0.8 * dataset.num_users))
    sequences = [dataset.items[dataset.offsets[u] : dataset.offsets[u + 1]] for u in users]
    return [items[least:].tolist() for items in sequences if len(items) > least]


def law(dataset, least, by):
    able = targets(dataset, least)
    weights = Counter()
    for items in able:
        for item in items:
            weights[item] += 1 if by == "interaction" else 1 / len(items)
    total = sum(weights.values())
    return {item: weight / total for item, weight in weights.items()}


@pytest.mark.parametrize(("least", "by"), OPTIONS)
def test_log_q_is_that_of_what_is_drawn(dataset, least, by):
    recipe = with_options(least, by, 'sampler={name="in_batch"}')
    sampler, q = build_sampler(recipe, dataset), law(dataset, least, by)
    found = sampler.log_q(torch.tensor(list(q)))
    assert found.tolist() == pytest.approx([math.log(share) for share in q.values()], abs=1e-5)
    for batch in islice(draw_batches(recipe.train, dataset), 20):
        assert set(batch.item_ids.tolist()) <= set(q)
        assert int((batch.history > 0).sum(dim=1).min()) >= least
    for never in set(range(1, dataset.num_items + 1)) - set(q):
        with pytest.raises(ValueError, match=f"item_ids hold {never}, whose count is 0"):
            sampler.log_q(torch.tensor([never]))


@pytest.mark.parametrize("by", ["user", "interaction"])
@pytest.mark.parametrize(
    "sampler",
    [
        '{name="uniform", num_negatives=64}',
        '{name="in_batch"}',
        '{name="mixed", num_uniform=64}',
        '{name="cross_batch", capacity=64, warmup_steps=0}',
    ],
)
def test_items_that_are_never_a_target_do_not_hinder_a_sampler(dataset, sampler, by):
    recipe = resolve(with_options(20, by, f"sampler={sampler}"), dataset)
    assert len(law(dataset, 20, by)) < dataset.num_items  # some have q = 0
    trainer = build_trainer(recipe, dataset)
    for batch in islice(draw_batches(recipe.train, dataset), 12):
        assert math.isfinite(float(trainer.train_step(batch).loss))


@pytest.mark.parametrize(("least", "by"), OPTIONS)
def test_the_default_warm_up_is_one_pass(dataset, least, by):
    recipe = with_options(least, by, 'sampler={name="cross_batch", capacity=64}')
    samples = sum(map(len, targets(dataset, least)))
    assert resolve(recipe, dataset).sampler["warmup_steps"] == math.ceil(samples / 16)


def test_a_resumed_run_by_interaction_is_the_same(dataset, tmp_path, monkeypatch):
    recipe = with_options(2, "interaction", "train.max_steps=40")
    fit(dataset, recipe, tmp_path / "whole")
    with stopped_after(17, monkeypatch), pytest.raises(Interrupted):
        fit(dataset, recipe, tmp_path / "part")
    fit(dataset, recipe, tmp_path / "part", resume=True)
    assert _losses(tmp_path / "part") == _losses(tmp_path / "whole")
    fit(dataset, recipe.changed(["train.sample_by=user"]), tmp_path / "other")
    assert _losses(tmp_path / "other") != _losses(tmp_path / "whole")


def _losses(run):
    entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    return [(entry["step"], entry["loss"]) for entry in entries if entry["event"] == "train"]
