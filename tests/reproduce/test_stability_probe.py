"""Drift and the lemma as a run measures them, against a replay and against plain autograd."""

from __future__ import annotations

import copy
import json
import signal
from dataclasses import replace

import pytest
import torch

from crossbatch.reproduce.stability_probe import INTERVALS, StabilityProbe
from crossbatch.training import Interrupted, fit
from crossbatch.training.build import build_trainer, resolve

from .conftest import BASE

RECIPE = BASE.changed(["sampler.capacity=100"])
TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")


def probes(run):
    lines = (run / "journal.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "probe"]


@pytest.fixture(scope="module")
def probed(dataset, tmp_path_factory):
    out = tmp_path_factory.mktemp("probe") / "run"
    result = fit(dataset, RECIPE, out, probe=StabilityProbe(dataset, RECIPE))
    return out, result


def test_a_probe_changes_nothing_that_is_learned(probed, dataset, tmp_path):
    _, result = probed
    plain = fit(dataset, RECIPE, tmp_path / "plain")
    assert {k: v for k, v in plain.items() if k not in TIMES} == {
        k: v for k, v in result.items() if k not in TIMES
    }


def test_measurements_begin_early_and_come_once_an_evaluation_interval(probed):
    steps = [event["step"] for event in probes(probed[0])]
    # Windows of 11 steps after 0, 5 %, 10 %, 20 %, 40 %, 70 % of 20 steps, and after 20 and 40.
    assert steps == [11, 12, 13, 15, 19, 25, 31, 51]


def test_drift_is_that_of_a_replayed_training(probed, dataset):
    trainer = build_trainer(resolve(RECIPE, dataset), dataset)
    batches = dataset.batches(RECIPE.train.batch_size, seed=0)
    ids = torch.arange(1, dataset.num_items + 1)
    history = {}
    for _ in range(31):
        trainer.train_step(next(batches))
        trainer.optimizer.flush()
        with torch.no_grad():
            history[trainer.step] = trainer.model.items(ids).double()
    event = next(event for event in probes(probed[0]) if event["step"] == 31)
    for interval in INTERVALS:
        distances = (history[31] - history[31 - interval]).norm(dim=1)
        found = event["drift"][str(interval)]
        assert found["sum"] == pytest.approx(float(distances.sum()), rel=1e-4)
        assert found["mean"] == pytest.approx(float(distances.mean()), rel=1e-4)
        relative = float(distances.sum() / history[31].norm(dim=1).sum())
        assert found["relative"] == pytest.approx(relative, rel=1e-4)


def test_lemma_is_that_of_plain_gradients(dataset):
    """Brute force: differentiate every logit with the cached and with the fresh vector."""
    trainer = build_trainer(resolve(RECIPE, dataset), dataset)
    batches = dataset.batches(RECIPE.train.batch_size, seed=0)
    for _ in range(8):
        trainer.train_step(next(batches))
    probe = StabilityProbe(dataset, RECIPE)
    bank = trainer.sampler.bank.read()
    found = probe._lemma(trainer, bank)
    model = copy.deepcopy(trainer.model).eval().double()
    parameters = list(model.parameters())
    fresh = model.items(bank.item_ids).detach()
    users, _ = model(probe.batch.history, probe.batch.item_ids, probe.batch.user_ids)
    deviations, needed = [], []
    for user in users:
        for now, cached in zip(fresh, bank.embeddings.double(), strict=True):
            with_cached, with_fresh = (
                torch.autograd.grad(user @ v, parameters, retain_graph=True, allow_unused=True)
                for v in (cached, now)
            )
            squared = sum(
                float((a - b).to_dense().square().sum())
                for a, b in zip(with_cached, with_fresh, strict=True)
                if a is not None
            )
            deviations.append(squared)
            epsilon = float((cached - now).square().sum())
            needed.append(squared / epsilon if epsilon else 0.0)
    assert found["deviation"] == pytest.approx(sum(deviations) / len(deviations), rel=1e-3)
    assert found["deviation_max"] == pytest.approx(max(deviations), rel=1e-3)
    assert found["constant"] == pytest.approx(max(needed), rel=1e-2)
    assert found["deviation"] <= found["bound"]
    assert found["constant"] <= found["jacobian"] * (1 + 1e-6)


def test_in_batch_runs_have_drift_and_no_lemma(dataset, tmp_path):
    recipe = replace(RECIPE, sampler={"name": "in_batch"})
    fit(dataset, recipe, tmp_path / "run", probe=StabilityProbe(dataset, recipe), test=False)
    assert all("lemma" not in event for event in probes(tmp_path / "run"))
    assert all(set(event["drift"]) == {"1", "5", "10"} for event in probes(tmp_path / "run"))


class Stopping(StabilityProbe):
    """Presses Ctrl-C after step 40."""

    def __call__(self, trainer, step):
        if step == 40:
            signal.raise_signal(signal.SIGINT)
        return super().__call__(trainer, step)


def test_a_resumed_run_measures_the_same(probed, dataset, tmp_path):
    """Stopped right after the checkpoint at step 40: the window after it is measured whole."""
    with pytest.raises(Interrupted):
        fit(dataset, RECIPE, tmp_path / "run", probe=Stopping(dataset, RECIPE))
    fit(dataset, RECIPE, tmp_path / "run", resume=True, probe=StabilityProbe(dataset, RECIPE))
    ours, theirs = probes(tmp_path / "run"), probes(probed[0])
    assert [event["step"] for event in ours] == [event["step"] for event in theirs]
    assert ours[-1] == theirs[-1]
