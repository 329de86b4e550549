import math

import pytest

from crossbatch.training.assemble import build_trainer, resolve
from crossbatch.training.monitor import ALARMS, Monitor


def run(dataset, recipe, steps, every):
    trainer = build_trainer(resolve(recipe, dataset), dataset)
    lines = []
    monitor = Monitor(
        trainer, every, lambda event, step, **fields: lines.append((event, step, fields))
    )
    losses = []
    batches = dataset.batches(recipe.train.batch_size, seed=0)
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


def test_alarms_ring_on_the_wrong_side_only():
    collapse = next(alarm for alarm in ALARMS if alarm.key == "mean_direction_share")
    assert collapse.rings({"mean_direction_share": 0.95})
    assert not collapse.rings({"mean_direction_share": 0.3})
    assert not collapse.rings({"mean_direction_share": math.nan})
    assert not collapse.rings({})
    starved = next(alarm for alarm in ALARMS if alarm.key == "gradient_ratio")
    assert starved.rings({"gradient_ratio": 0.001})
    assert not starved.rings({"gradient_ratio": 0.5})


def test_a_bank_too_large_for_the_catalogue_is_said_aloud(dataset, recipe, monkeypatch):
    monkeypatch.setattr(Monitor, "measure", lambda self, record: {"masked_share": 0.4})
    _, lines, _ = run(dataset, recipe, 6, every=2)
    warnings = [(step, fields["message"]) for event, step, fields in lines if event == "warning"]
    assert len(warnings) == 1
    assert warnings[0][0] == 2
    assert "masked_share is 0.4" in warnings[0][1]
    assert "sampler.capacity" in warnings[0][1]


def test_clocks_stand_still_between_pause_and_go_on(monkeypatch):
    wall, cpu = [100.0], [7.0]
    monkeypatch.setattr("time.perf_counter", lambda: wall[0])
    monkeypatch.setattr("time.process_time", lambda: cpu[0])
    monitor = Monitor(None, 1, lambda *_: None, seconds=5.0, cpu_seconds=2.0)
    monitor.go_on()
    wall[0], cpu[0] = 103.0, 8.0  # three seconds of training, one of them on the processor
    monitor.pause()
    wall[0], cpu[0] = 200.0, 90.0  # an evaluation
    monitor.go_on()
    wall[0], cpu[0] = 201.0, 91.0
    monitor.pause()
    assert (monitor.seconds, monitor.cpu_seconds) == (9.0, 4.0)
