"""Whole runs on several ranks: results, resume, restarts, and what may go wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crossbatch.training import fit

from ..conftest import RECIPE as WITH_FEATURES
from ..conftest import recipe_file
from .launching import HANGS, SOURCE, finish, launch

TIMES = ("seconds_per_1000_steps", "cpu_seconds_per_1000_steps", "convergence_minutes")
# Without the layer that features need: its bias has a gradient of rounding alone, of which Adam
# makes steps of full size.
RECIPE = replace(WITH_FEATURES, model=replace(WITH_FEATURES.model, item_features=()))
TORCHRUN = (
    "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
    "--rdzv-conf", "join_timeout=1800,keep_alive_max_attempt=360",
    "--nproc-per-node", "2", "--max-restarts", "1",
)  # fmt: skip
LONG = replace(RECIPE, train=replace(RECIPE.train, max_steps=200, eval_every=100, patience=99))
WAITING = str(Path(__file__).parents[1] / "waiting_command.py")


def train(dataset, recipe, out, *options):
    """The command line of a training."""
    file = recipe_file(out.with_suffix(".toml"), recipe)
    paths = [str(file), "--data", str(dataset.path), "--out", str(out)]
    return ["-m", "crossbatch", "train", *paths, "--quiet", "--timeout", "1800", *options]


def train_and_wait(step, rank, *arguments):
    """The same of a training whose `rank` waits after a step."""
    return [WAITING, str(step), str(rank), *train(*arguments)[2:]]


def losses(run):
    whole = (run / "journal.jsonl").read_text().rpartition("\n")[0]  # the last may be half written
    lines = [json.loads(line) for line in whole.splitlines()]
    return {line["step"]: line["loss"] for line in lines if line["event"] == "train"}


def result(run):
    found = json.loads((run / "result.json").read_text())
    return {key: value for key, value in found.items() if key not in TIMES}


def test_two_ranks_make_the_run_of_one(dataset, tmp_path):
    alone = fit(dataset, RECIPE, tmp_path / "alone")
    both = tmp_path / "both"
    assert [code for code, _ in finish(launch(2, train(dataset, RECIPE, both)))] == [0, 0]
    assert losses(both) == pytest.approx(losses(tmp_path / "alone"), rel=1e-4)
    assert {path.name for path in both.iterdir()} == {
        path.name for path in (tmp_path / "alone").iterdir()
    }
    found = result(both)
    assert found["num_users"] == alone["num_users"]
    for metric, value in alone["test"].items():
        assert found["test"][metric] == pytest.approx(value, abs=0.01, nan_ok=True), metric


def test_ranks_with_different_recipes_are_refused_with_one_message(dataset, tmp_path):
    command = train(dataset, RECIPE, tmp_path / "run")
    (first, first_output), (second, second_output) = finish(
        launch(2, command, each={1: ["--set", "train.lr=0.5"]})
    )
    assert (first, second) == (2, 2)
    assert "train.lr is 0.5 on rank 1, but 0.01 on rank 0" in second_output
    assert "crossbatch:" not in first_output
    assert not (tmp_path / "run" / "config.json").exists()


def test_more_ranks_than_rows_is_a_mistake(dataset, tmp_path):
    command = train(dataset, RECIPE, tmp_path / "run", "--set", "train.batch_size=1")
    outcomes = finish(launch(2, command))
    assert [code for code, _ in outcomes] == [2, 2]
    assert sum("leaves nothing to rank 1 of 2" in text for _, text in outcomes) == 1
    assert "Traceback" not in "".join(text for _, text in outcomes)


@pytest.mark.slow
def test_a_hung_rank_is_named(dataset, tmp_path):
    endless = replace(LONG, train=replace(LONG.train, max_steps=10**6))
    processes = launch(2, train_and_wait(5, 0, dataset, endless, tmp_path / "run"))
    assert processes[0].stdout.readline() == "waiting\n", finish(processes)
    processes[1].send_signal(signal.SIGSTOP)
    processes[0].stdin.write("1")  # a short time limit only now, when rank 1 cannot answer any more
    processes[0].stdin.close()
    processes[0].stdin = None
    code = processes[0].wait(timeout=HANGS)
    processes[1].kill()
    assert code == 1
    output = finish(processes)[0][1]
    assert "lost contact with rank 1 of 2: killed, or without a sign for 1800 s" in output
    assert "Traceback" not in output


@pytest.fixture(scope="module")
def whole(dataset, tmp_path_factory):
    """The long run of two ranks, without a stop."""
    out = tmp_path_factory.mktemp("ranks") / "whole"
    assert [code for code, _ in finish(launch(2, train(dataset, LONG, out)))] == [0, 0]
    return out


@pytest.mark.slow
def test_a_stopped_run_resumes_exactly_and_on_another_number_of_ranks(whole, dataset, tmp_path):
    stopped, more = tmp_path / "stopped", tmp_path / "more"
    processes = launch(2, train_and_wait(152, 1, dataset, LONG, stopped))
    assert processes[1].stdout.readline() == "waiting\n", finish(processes)
    processes[1].send_signal(signal.SIGTERM)  # one is asked, both stop at the same step
    processes[1].stdin.close()
    processes[1].stdin = None
    outcomes = finish(processes)
    assert [code for code, _ in outcomes] == [130, 130]
    assert sum("saved; continue" in text for _, text in outcomes) == 1
    shutil.copytree(stopped, more)
    before = max(losses(stopped))
    command = train(dataset, LONG, stopped, "--resume")
    assert [code for code, _ in finish(launch(2, command))] == [0, 0]
    assert result(stopped) == result(whole)
    expected = losses(whole)
    expected.pop(before + 5)  # a mean over the steps of one session
    assert {step: loss for step, loss in losses(stopped).items() if step in expected} == expected
    command = train(dataset, LONG, more, "--resume")
    assert [code for code, _ in finish(launch(3, command))] == [0, 0, 0]
    soon = [step for step in losses(whole) if before + 5 < step <= before + 50]
    assert soon
    for step in soon:
        assert losses(more)[step] == pytest.approx(losses(whole)[step], rel=1e-3)


@pytest.mark.slow
def test_torchrun_starts_again_after_a_kill(whole, dataset, tmp_path):
    killed = tmp_path / "killed"
    torchrun = subprocess.Popen(
        [sys.executable, *TORCHRUN, *train_and_wait(150, 1, dataset, LONG, killed)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert torchrun.stdout.readline() == "waiting\n", finish([torchrun])
    torchrun.stdin.write("die")
    torchrun.stdin.close()
    torchrun.stdin = None
    ((code, output),) = finish([torchrun])
    assert code == 0, output
    assert result(killed) == result(whole)
    assert losses(killed) == losses(whole)
