"""The journal of a run: lines, diagnostics, and warnings of harm."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from crossbatch.config import Recipe
from crossbatch.data import PrepareOptions, open_dataset, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.negatives import Candidates
from crossbatch.training.build import build_trainer, draw_batches, resolve
from crossbatch.training.journal import ALARMS, Journal, Monitor


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_and_readable_at_once(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.write("train", 5, loss=1.5)
    assert lines(tmp_path / "journal.jsonl") == [{"event": "train", "step": 5, "loss": 1.5}]
    journal.close()


def test_not_a_number_becomes_null(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.write("train", 1, loss=float("nan"), diagnostics={"a": float("inf"), "b": 2.0})
    journal.close()
    assert lines(tmp_path / "j")[0]["diagnostics"] == {"a": None, "b": 2.0}


def test_a_resumed_journal_drops_what_came_after_the_checkpoint(tmp_path):
    path = tmp_path / "j"
    journal = Journal(path)
    journal.write("train", 1)
    length = journal.length()
    journal.write("train", 2)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"event": "tra')  # killed in the middle of a line
    resumed = Journal(path, length)
    resumed.write("resume", 1)
    resumed.close()
    assert [line["event"] for line in lines(path)] == ["train", "resume"]


def run(dataset, recipe, steps, every):
    trainer = build_trainer(resolve(recipe, dataset), dataset)
    lines = []
    monitor = Monitor(
        trainer, every, lambda event, step, **fields: lines.append((event, step, fields))
    )
    losses = []
    batches = draw_batches(recipe.train, dataset, seed=0)
    for _ in range(steps):
        record = trainer.train_step(next(batches))
        losses.append(float(record.loss))
        monitor(record)
    return monitor, lines, losses


def test_lines_hold_the_mean_loss_since_the_last(dataset, recipe):
    _, lines, losses = run(dataset, recipe, 12, every=5)
    trained = [(step, fields) for event, step, fields in lines if event == "train"]
    assert [step for step, _ in trained] == [5, 10]
    assert trained[0][1]["loss"] == pytest.approx(sum(losses[:5]) / 5)
    assert trained[1][1]["loss"] == pytest.approx(sum(losses[5:10]) / 5)


def test_every_diagnostic_of_the_design_is_there(dataset, recipe):
    _, lines, _ = run(dataset, recipe, 30, every=30)
    diagnostics = lines[0][2]["diagnostics"]
    assert set(diagnostics) == {
        "negatives_per_row",
        "masked_share",
        "effective_negatives",
        "hardness",
        "bank_mass_share",
        "item_norm",
        "mean_direction_share",
        "gradient_ratio",
        "bank_fill",
        "bank_mean_age",
        "bank_staleness",
    }
    assert all(math.isfinite(value) for value in diagnostics.values())
    assert diagnostics["bank_fill"] == 70
    assert 0 < diagnostics["bank_staleness"] < 1


def test_alarms_trigger_on_the_wrong_side_only():
    collapse = next(alarm for alarm in ALARMS if alarm.key == "mean_direction_share")
    assert collapse.triggered({"mean_direction_share": 0.95})
    assert not collapse.triggered({"mean_direction_share": 0.3})
    assert not collapse.triggered({"mean_direction_share": math.nan})
    assert not collapse.triggered({})
    starved = next(alarm for alarm in ALARMS if alarm.key == "gradient_ratio")
    assert starved.triggered({"gradient_ratio": 0.001})
    assert not starved.triggered({"gradient_ratio": 0.5})


def test_a_bank_too_large_for_the_catalogue_causes_one_warning(dataset, recipe, monkeypatch):
    monkeypatch.setattr(Monitor, "measure", lambda self, record: {"masked_share": 0.4})
    _, lines, _ = run(dataset, recipe, 6, every=2)
    warnings = [(step, fields["message"]) for event, step, fields in lines if event == "warning"]
    assert len(warnings) == 1
    assert warnings[0][0] == 2
    assert "masked_share is 0.4" in warnings[0][1]
    assert "sampler.capacity" in warnings[0][1]


def test_time_is_not_counted_between_pause_and_resume(monkeypatch):
    wall, cpu = [100.0], [7.0]
    monkeypatch.setattr("time.perf_counter", lambda: wall[0])
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    monitor = Monitor(None, 1, lambda *_: None, seconds=5.0, cpu_seconds=2.0)
    monitor.resume()
    wall[0], cpu[0] = 103.0, 8.0  # three seconds of training, one of them on the processor
    monitor.pause()
    wall[0], cpu[0] = 200.0, 90.0  # an evaluation
    monitor.resume()
    wall[0], cpu[0] = 201.0, 91.0
    monitor.pause()
    assert (monitor.seconds, monitor.cpu_seconds) == (9.0, 4.0)


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A log whose items have content, for towers that share all their weights among items."""
    path = tmp_path_factory.mktemp("content") / "dataset"
    source = synthetic_source(SynthOptions(users=1500, items=600, interactions=30_000, seed=7))
    prepare(source, path, PrepareOptions())
    return open_dataset(path)


@pytest.mark.parametrize("item_gradient", ["paper", "balanced"])
def test_only_a_collapse_after_the_bank_is_switched_on_causes_a_warning(content, item_gradient):
    """The demo's recipe, which with the published gradient never comes near a share of 0.9."""
    recipe = Recipe.load("demo", [f"sampler.item_gradient={item_gradient}"])
    recipe = recipe.changed(["sampler.warmup_steps=100", "train.device=cpu"])
    monitor, lines, _ = run(content, recipe, 300, every=50)
    shares = [
        fields["diagnostics"]["mean_direction_share"] for event, _, fields in lines
        if event == "train"
    ]  # fmt: skip
    warnings = [(step, fields["message"]) for event, step, fields in lines if event == "warning"]
    assert monitor.share_before_bank == shares[1]
    assert max(shares) < 0.9
    if item_gradient == "balanced":
        assert not warnings
        return
    assert len(warnings) == 1
    step, message = warnings[0]
    assert 100 < step <= 200
    assert "mean_direction_growth is" in message
    assert "collapsing" in message


def test_growth_is_from_the_last_share_without_cached_columns(dataset, recipe):
    trainer = build_trainer(resolve(recipe, dataset), dataset)
    monitor = Monitor(trainer, 1, lambda *_, **__: None)
    batch = Candidates(torch.randn(2, 4), torch.arange(1, 3), torch.zeros(2))
    bank = Candidates(torch.randn(2, 4), torch.arange(1, 3), torch.zeros(2), cached=True)
    plain, banked = SimpleNamespace(negatives=batch), SimpleNamespace(negatives=batch + bank)
    assert monitor._growth(0.9, banked) == {}  # nothing to compare with
    monitor._growth(0.5, plain)
    assert monitor._growth(0.25, plain)["mean_direction_growth"] == 1.0
    assert monitor._growth(0.5, banked)["mean_direction_growth"] == 2.0
    assert monitor._growth(1.0, banked)["mean_direction_growth"] == 4.0
    monitor.share_before_bank = 0.01
    assert monitor._growth(0.5, banked)["mean_direction_growth"] == 2.5  # noise does not count
