"""A grid in real processes: killed and resumed, shared between two, and what may go wrong."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from crossbatch.errors import ConfigError
from crossbatch.reproduce.design import Design
from crossbatch.reproduce.grid import check_runs, duration_text, minutes_left, run_grid
from crossbatch.training import fit
from crossbatch.training.run_folder import in_use

from .conftest import BASE

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
# Until it is killed, however slow the machine is.
ENDLESS = BASE.changed([f"train.{key}=1_000_000_000" for key in ("max_steps", "patience")])


def grid_of(recipe, *strategies):
    return Design(recipe, one_pass=20, models=("youtube_dnn",), strategies=strategies).table1()


def result(path):
    content = json.loads((path / "result.json").read_text())
    return {key: value for key, value in content.items() if key not in TIMES}


def checkpoints(run):
    return list((run / "checkpoints").glob("step-*"))


def wait_until(true, timeout=1800):
    deadline = time.monotonic() + timeout
    while not true():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


COMMAND = """
import json
import sys
from pathlib import Path
from crossbatch.config import Recipe
from crossbatch.data import open_dataset
from crossbatch.reproduce.design import PlannedRun
from crossbatch.reproduce.grid import run_grid
data, out, jobs = sys.argv[1:4]
runs = [PlannedRun(folder, Recipe.from_dict(recipe)) for folder, recipe in json.loads(sys.argv[4])]
outcome = run_grid(runs, open_dataset(data), Path(out), jobs=int(jobs))
sys.exit(130 if outcome.interrupted else 0)
"""


def start(cells, dataset, out, jobs=2):
    document = json.dumps([(cell.folder, cell.recipe.to_dict()) for cell in cells])
    command = [sys.executable, "-c", COMMAND, str(dataset.path), str(out), str(jobs), document]
    return subprocess.Popen(command)


@pytest.mark.slow
def test_sigkill_then_the_same_grid_gives_what_an_undisturbed_one_gives(dataset, tmp_path):
    cells = grid_of(ENDLESS, "in_batch", "cross_batch")
    out = tmp_path / "grid"
    runs = [out / cell.folder for cell in cells]
    grid = start(cells, dataset, out)
    wait_until(lambda: all(checkpoints(run) for run in runs))
    grid.send_signal(signal.SIGKILL)
    grid.wait()
    # Workers notice that their grid is gone, save and end: none trains on unnoticed.
    wait_until(lambda: not any(in_use(run) for run in runs))
    steps = max(int(path.name.partition("-")[2]) for run in runs for path in checkpoints(run))
    longer = ENDLESS.changed([f"train.max_steps={steps + 30}"])
    cells = grid_of(longer, "in_batch", "cross_batch")
    again = run_grid(cells, dataset, out, jobs=2)
    assert again.finished == cells
    for cell, run in zip(cells, runs, strict=True):
        fit(dataset, cell.recipe, tmp_path / "whole" / cell.folder)
        assert result(run) == result(tmp_path / "whole" / cell.folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_stop_saves_every_run(dataset, tmp_path, number):
    cells = grid_of(ENDLESS, "in_batch")
    run = tmp_path / cells[0].folder
    grid = start(cells, dataset, tmp_path)
    wait_until(lambda: (run / "journal.jsonl").is_file())
    wait_until(lambda: b'"train"' in (run / "journal.jsonl").read_bytes())
    grid.send_signal(number)
    assert grid.wait(timeout=1800) == 130
    assert not in_use(run)
    assert checkpoints(run)


@pytest.mark.slow
def test_two_grids_on_one_folder_share_the_work(dataset, tmp_path):
    cells = grid_of(BASE, "in_batch", "uniform", "mixed")
    grids = [start(cells, dataset, tmp_path, jobs=1) for _ in range(2)]
    assert [grid.wait(timeout=1800) for grid in grids] == [0, 0]
    for cell in cells:
        journal = (tmp_path / cell.folder / "journal.jsonl").read_text()
        assert journal.count('"event": "start"') == 1
        assert '"event": "resume"' not in journal
        assert cell.is_finished(tmp_path)


def test_one_failure_stops_no_other_run_and_finished_runs_are_left_alone(dataset, tmp_path):
    good, bad = grid_of(BASE, "in_batch", "cross_batch")
    bad = replace(bad, recipe=bad.recipe.changed(["sampler.capacity=-1"]))
    outcome = run_grid([bad, good], dataset, tmp_path, jobs=2)
    assert outcome.finished == [good]
    assert "capacity must be" in outcome.failed[bad.folder]
    assert "Traceback" not in outcome.failed[bad.folder]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / good.folder).rglob("*") if p.is_file()}
    again = run_grid([good], dataset, tmp_path, jobs=1)
    assert again.finished == [good]
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert minutes_left([good], [good, bad], tmp_path) == pytest.approx(
        2 * json.loads((tmp_path / good.folder / "result.json").read_text())["convergence_minutes"]
    )


def test_a_run_of_another_recipe_is_refused_by_name(dataset, tmp_path):
    (cell,) = grid_of(BASE, "in_batch")
    folder = tmp_path / cell.folder
    folder.mkdir(parents=True)
    config = cell.recipe.to_dict() | {"dataset": {"checksum": dataset.manifest["checksum"]}}
    (folder / "config.json").write_text(json.dumps(config))
    check_runs([cell], dataset, tmp_path)
    other = replace(cell, recipe=cell.recipe.changed(["train.lr=0.5"]))
    with pytest.raises(ConfigError, match=r"in_batch-s0 was trained with train.lr = 0.01, not 0.5"):
        check_runs([other], dataset, tmp_path)
    config["dataset"] = {"checksum": "another"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="checksum"):
        check_runs([cell], dataset, tmp_path)


def test_the_time_left_is_that_of_the_most_similar_finished_runs(tmp_path):
    runs = grid_of(BASE, "in_batch", "cross_batch", "uniform")
    assert minutes_left(runs, runs, tmp_path) is None
    for run, minutes in zip(runs, (2.0, 6.0), strict=False):
        (tmp_path / run.folder).mkdir(parents=True)
        text = json.dumps({"convergence_minutes": minutes})
        (tmp_path / run.folder / "result.json").write_text(text)
    assert minutes_left(runs, [runs[0]], tmp_path) == 2.0
    assert minutes_left(runs, [runs[2]], tmp_path) == 4.0  # no uniform run yet: the model's mean
    other = replace(runs[0], recipe=runs[0].recipe.changed(["model.name=mind"]))
    assert minutes_left(runs, [other, other], tmp_path) == 8.0


@pytest.mark.parametrize(
    ("minutes", "text"), [(0.5, "30 s"), (12.3, "12 min"), (200.0, "3 h 20 min")]
)
def test_times_in_words(minutes, text):
    assert duration_text(minutes) == text


def test_in_use_tells_a_held_lock(tmp_path):
    assert not in_use(tmp_path / "absent")
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert in_use(tmp_path)
    assert not in_use(tmp_path)
