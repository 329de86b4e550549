"""Worker processes of the step benchmark: timing, turns and failures."""

import sys
from pathlib import Path

import pytest

from measure.workers import Row, Worker, interleave
from peers.serve import warm_up

FAKE = """
import time
from peers.serve import serve

def busy():
    end = time.process_time() + 0.01
    while time.process_time() < end:
        pass

def broken():
    raise SystemExit("no such data")

print("chatter on standard output does no harm")
rows = {"busy": lambda: busy, "idle": lambda: lambda: time.sleep(0.002), "broken": broken}
serve(rows, ("torch",))
"""


@pytest.fixture
def worker(tmp_path, monkeypatch):
    (tmp_path / "fake_peer.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Worker(Path(sys.executable), "fake_peer", [], threads=1, log=tmp_path / "log")
    yield made
    made.close()


def test_cpu_time_counts_work_and_not_waiting(worker):
    assert worker.rows == ["busy", "idle", "broken"]
    assert set(worker.versions) == {"torch"}
    for name in ("busy", "idle"):
        worker.prepare(name, 1, 9.0)
    cpu, wall = worker.steps("busy", 10)
    assert 0.01 <= cpu <= 1.01 * wall  # the two clocks differ a little
    idle_cpu, idle_wall = worker.steps("idle", 10)
    assert idle_wall >= 0.002
    assert idle_cpu < cpu / 2


def test_rows_take_turns(worker):
    rows = [Row("a", worker, "busy"), Row("b", worker, "idle")]
    for row in rows:
        worker.prepare(row.name, 0, 0.0)
        row.choose_count(3)
    interleave(rows, 4)
    assert [len(row.cpu) for row in rows] == [4, 4]
    rows[0].choose_count(None)
    assert rows[0].count == 64  # far below a second


def test_a_worker_that_ends_says_where_to_look(worker):
    with pytest.raises(RuntimeError, match=r"fake_peer ended; see .*log"):
        worker.prepare("broken", 1, 9.0)
    assert "no such data" in worker.log.read_text()


@pytest.mark.parametrize(("count", "seconds", "expected"), [(5, 9.0, 5), (50, 0.0, 2), (1, 0.0, 1)])
def test_warming_up_ends_by_steps_or_by_time(count, seconds, expected):
    taken = []
    warm_up(lambda: taken.append(1), count, seconds)
    assert len(taken) == expected
