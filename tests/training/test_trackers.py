import json
from contextlib import suppress

import pytest

from crossbatch.errors import ConfigError
from crossbatch.training import fit
from crossbatch.training.progress import open_trackers, scalars

FIELDS = {"loss": 1.5, "diagnostics": {"hardness": 0.25, "bank_staleness": float("nan")}, "x": "y"}


def test_scalars_are_the_numbers_of_a_line():
    assert scalars("train", FIELDS) == {"train/loss": 1.5, "train/hardness": 0.25}


def test_the_two_protocols_of_an_evaluation_have_names_of_their_own():
    fields = {"metrics": {"recall@50": 0.1}, "unseen": {"recall@50": 0.2}, "value": 0.2}
    assert scalars("eval", fields) == {
        "eval/recall@50": 0.1,
        "eval/unseen_recall@50": 0.2,
        "eval/value": 0.2,
    }


def test_tensorboard_can_read_what_a_run_wrote(dataset, recipe, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"
    with open_trackers(["tensorboard"], run) as trackers:
        assert not run.exists()  # or the run folder would be refused as not empty
        fit(dataset, recipe, run, trackers=trackers, test=False)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert {e.step: e.value for e in events.Scalars("eval/recall@50")} == journal(run)


def test_bug_tensorboard_showed_steps_twice_that_a_kill_repeated(dataset, recipe, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tmp_path / "run"

    def killed(_trainer, step):
        if step == 31:  # after a line of step 30, which is not in the checkpoint of step 20
            raise KeyboardInterrupt

    for probe in (killed, None):
        with suppress(KeyboardInterrupt), open_trackers(["tensorboard"], run) as trackers:
            fit(dataset, recipe, run, trackers=trackers, test=False, probe=probe, resume=True)
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == list(range(5, 61, 5))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and SQLAlchemy
def test_bug_a_kill_between_the_id_and_the_settings_left_a_run_without(
    dataset, recipe, tmp_path, monkeypatch
):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")

    def killed(*_):
        raise KeyboardInterrupt

    quick, run = recipe.changed(["train.max_steps=5"]), tmp_path / "run"
    for kill in (True, False):
        with (
            suppress(KeyboardInterrupt),
            open_trackers(["mlflow"], run) as trackers,
            monkeypatch.context() as patch,
        ):
            if kill:
                patch.setattr(mlflow, "log_params", killed)
            fit(dataset, quick, run, trackers=trackers, test=False, resume=True)
    run_id = (run / "mlflow_run_id.txt").read_text().strip()
    assert mlflow.MlflowClient().get_run(run_id).data.params["sampler.capacity"] == "70"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # between MLflow and SQLAlchemy
def test_mlflow_can_read_a_run_of_two_sessions(dataset, recipe, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    run = tmp_path / "run"

    def killed(_trainer, step):
        if step == 30:
            raise KeyboardInterrupt

    for probe in (killed, None):
        with suppress(KeyboardInterrupt), open_trackers(["mlflow"], run) as trackers:
            fit(dataset, recipe, run, trackers=trackers, test=False, probe=probe, resume=True)
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    assert found.data.params["sampler.capacity"] == "70"
    history = client.get_metric_history(found.info.run_id, "eval/recall_at_50")
    assert {m.step: m.value for m in history} == journal(run)


def journal(run):
    """Recall at 50 by step, as the journal has it; float32 is what TensorBoard keeps."""
    lines = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    evals = {e["step"]: e["metrics"]["recall@50"] for e in lines if e["event"] == "eval"}
    assert set(evals) == {20, 40, 60}
    return {step: pytest.approx(value, rel=1e-6) for step, value in evals.items()}


def test_a_store_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://somewhere")
    with (
        pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI"),
        open_trackers(["mlflow"], tmp_path) as (tracker,),
    ):
        tracker.event("eval", 5, {"metrics": {"recall@50": 0.125}})


def test_unknown_trackers_are_refused(tmp_path):
    refused = pytest.raises(ConfigError, match="mlflow, wandb, got 'comet'")
    with refused, open_trackers(["comet"], tmp_path):
        pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_wandb_offline_gets_what_the_journal_has(dataset, recipe, tmp_path, monkeypatch):
    """Calls of a real offline run; its file has a format of wandb's own, which only wandb reads."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for limit in ("WANDB_INIT_TIMEOUT", "WANDB__SERVICE_WAIT"):  # seconds; the machine may be busy
        monkeypatch.setenv(limit, "1800")
    settings, logged, init = {}, [], wandb.init

    def recorded_init(**options):
        started = init(**options)
        settings.update(started.config)
        log = started.log
        monkeypatch.setattr(started, "log", lambda line: (logged.append(line), log(line)))
        return started

    monkeypatch.setattr(wandb, "init", recorded_init)
    run = tmp_path / "run"
    with open_trackers(["wandb"], run) as trackers:
        assert not run.exists()
        fit(dataset, recipe, run, trackers=trackers, test=False)
    found = {n["step"]: n["eval/recall@50"] for n in logged if "eval/recall@50" in n}
    assert found == journal(run)
    assert settings["sampler.capacity"] == 70
    (path,) = run.glob("wandb/offline-run-*/*.wandb")
    assert path.stat().st_size > 0
    assert (run / "wandb_run_id.txt").read_text().strip() in path.name
