import pytest

from crossbatch.errors import ConfigError
from crossbatch.training.trackers import open_trackers, scalars

FIELDS = {"loss": 1.5, "diagnostics": {"hardness": 0.25, "bank_staleness": float("nan")}, "x": "y"}


def test_scalars_are_the_numbers_of_a_line():
    assert scalars("train", FIELDS) == {"train/loss": 1.5, "train/hardness": 0.25}


def test_tensorboard_can_read_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = open_trackers(["tensorboard"], tmp_path)
    for step in (10, 20):
        tracker.event("train", step, {"loss": step / 10})
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(10, 1.0), (20, 2.0)]


def test_mlflow_can_read_what_was_written(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    (tracker,) = open_trackers(["mlflow"], tmp_path / "first")
    run_id = mlflow.active_run().info.run_id
    tracker.event("eval", 5, {"metrics": {"recall@50": 0.125}})
    tracker.close()
    assert mlflow.get_run(run_id).data.metrics == {"eval/recall_at_50": 0.125}


def test_unknown_trackers_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be one of tensorboard, mlflow, got 'wandb'"):
        open_trackers(["wandb"], tmp_path)
