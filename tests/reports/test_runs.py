from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from crossbatch.errors import DataError
from crossbatch.reports.runs import read_run, read_runs

from .conftest import MakeRun, toy_journal

if TYPE_CHECKING:
    from pathlib import Path


def test_finished_run(make_run: MakeRun) -> None:
    run = read_run(make_run("a", seed=3, result={"test_ci": {"recall@50": [0.09, 0.11]}}))
    assert (run.name, run.model, run.sampler, run.seed) == ("a", "mind", "in_batch", 3)
    assert (run.status, run.steps, run.finished) == ("converged", 300, True)
    assert run.metrics() == {"recall@50": 0.1}
    assert run.interval("recall@50") == (0.09, 0.11)
    assert run.interval("ndcg@50") is None
    assert run.notes == ()


def test_unfinished_run_reads_what_is_there(make_run: MakeRun) -> None:
    events = toy_journal([0.05, 0.06], stop=None)
    run = read_run(make_run("a", seed=7, journal=events, finished=False))
    assert (run.status, run.steps, run.seed, run.finished) == ("unfinished", 200, 7, False)
    assert run.metrics() == {}
    assert run.seconds_per_1000_steps == pytest.approx(1000 * 20.0 / 200)
    assert run.convergence_minutes is None
    assert run.notes == ("no result yet: it has no test metrics",)


def test_missing_and_truncated_journals_are_noted(make_run: MakeRun) -> None:
    gone, cut = make_run("gone", journal=None), make_run("cut")
    (cut / "journal.jsonl").write_text((cut / "journal.jsonl").read_text()[:-9])
    assert read_run(gone).notes == ("the journal is missing: no curves",)
    assert read_run(cut).notes == ("1 unreadable journal line skipped",)


def test_result_alone_is_a_run(make_run: MakeRun) -> None:
    folder = make_run("a", journal=None)
    (folder / "config.json").unlink()
    run = read_run(folder)
    assert (run.model, run.sampler, run.dataset) == ("mind", "in_batch", "")


@pytest.mark.parametrize("what", ["missing", "file", "empty"])
def test_what_is_not_a_run_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / what
    if what == "file":
        path.write_text("x")
    elif what == "empty":
        path.mkdir()
    with pytest.raises(DataError, match="crossbatch train"):
        read_run(path)


@pytest.mark.parametrize("text", ['{"model": ', "[1, 2]", "\x00"])
@pytest.mark.parametrize("file", ["config.json", "result.json"])
def test_broken_json_names_the_file(make_run: MakeRun, file: str, text: str) -> None:
    folder = make_run("a")
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=file):
        read_run(folder)


def test_no_run_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="at least one run"):
        read_runs([])


def test_names_are_as_short_as_they_can_be(make_run: MakeRun) -> None:
    paths = [make_run("x/seed0"), make_run("y/seed0"), make_run("y/seed1")]
    assert [run.name for run in read_runs(paths)] == ["x/seed0", "y/seed0", "y/seed1"]
    assert [run.name for run in read_runs(paths[1:])] == ["seed0", "seed1"]


def test_a_folder_named_twice_counts_once(make_run: MakeRun) -> None:
    path = make_run("a")
    assert len(read_runs([path, path / ".." / "a"])) == 1


def test_nan_metrics_are_no_metrics(make_run: MakeRun) -> None:
    run = read_run(make_run("a", test={"recall@50": float("nan"), "ndcg@50": 0.5}))
    assert run.metrics() == {"ndcg@50": 0.5}


def test_per_user_arrays(make_run: MakeRun) -> None:
    run = read_run(make_run("a", per_user={"recall@50": [0.0, 0.5, 1.0]}))
    values = run.per_user("recall@50")
    assert values is not None
    assert values.tolist() == [0.0, 0.5, 1.0]
    assert run.per_user("ndcg@50") is None


@pytest.mark.parametrize("content", ["matrix", "integers", "pickle", "rubbish"])
def test_broken_per_user_arrays_are_refused(make_run: MakeRun, content: str) -> None:
    folder = make_run("a", per_user={"recall@50": [1.0]})
    path = folder / "per_user" / "test_recall@50.npy"
    arrays = {
        "matrix": np.zeros((2, 2), dtype=np.float32),
        "integers": np.arange(3),
        "pickle": np.array([{}], dtype=object),
    }
    if content == "rubbish":
        path.write_bytes(b"")
    else:
        np.save(path, arrays[content], allow_pickle=True)
    with pytest.raises(DataError, match="evaluate the run again"):
        read_run(folder).per_user("recall@50")


@pytest.mark.parametrize("text", ["{", '{"history": []}'])
def test_broken_examples_cost_a_note_only(make_run: MakeRun, text: str) -> None:
    folder = make_run("a")
    (folder / "examples.json").write_text(text)
    run = read_run(folder)
    assert run.examples == []
    assert "examples.json" in run.notes[0]
