from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.reports.journal import Journal, number, read_journal

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines))
    return path


def train(step: int, loss: float) -> str:
    return json.dumps({"event": "train", "step": step, "loss": loss})


def test_missing_file_is_an_empty_journal(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == Journal()


def test_truncated_last_line_is_counted_and_the_rest_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "j", train(1, 3.0), train(2, 2.0), train(3, 1.0)[:20])
    journal = read_journal(path)
    assert journal.bad_lines == 1
    assert journal.curve("train", "step", "loss").y == (3.0, 2.0)


def test_broken_bytes_and_foreign_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(b'\xff\xfe\n[1]\n"text"\n{"step": 1}\n\n' + train(1, 3.0).encode())
    journal = read_journal(path)
    assert journal.bad_lines == 4
    assert len(journal.events) == 1


def test_resume_takes_back_what_was_written_after_its_step(tmp_path: Path) -> None:
    lines = [train(1, 9.0), train(2, 8.0), train(3, 7.0), '{"event": "resume", "step": 1}']
    journal = read_journal(write(tmp_path / "j", *lines, train(2, 5.0)))
    curve = journal.curve("train", "step", "loss")
    assert (curve.x, curve.y) == ((1.0, 2.0), (9.0, 5.0))


def test_resume_keeps_warnings(tmp_path: Path) -> None:
    warning = '{"event": "warning", "step": 3, "message": "collapse"}'
    journal = read_journal(write(tmp_path / "j", warning, '{"event": "resume", "step": 1}'))
    assert journal.of("warning")[0]["message"] == "collapse"


def test_a_resumed_run_has_not_stopped(tmp_path: Path) -> None:
    lines = ['{"event": "stop", "step": 3, "reason": "nan"}', '{"event": "resume", "step": 1}']
    assert read_journal(write(tmp_path / "j", *lines)).last("stop") is None


def test_points_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    lines = [train(1, 1.0), train(2, float("nan")), '{"event": "train", "step": 3, "loss": null}']
    journal = read_journal(write(tmp_path / "j", *lines, '{"event": "train", "step": 4}'))
    assert journal.curve("train", "step", "loss").x == (1.0,)


def test_curve_follows_nested_keys_and_survives_foreign_ones(tmp_path: Path) -> None:
    lines = ['{"event": "eval", "step": 5, "metrics": {"recall@50": 0.25}}',
             '{"event": "eval", "step": 6, "metrics": 7}']  # fmt: skip
    journal = read_journal(write(tmp_path / "j", *lines))
    assert journal.curve("eval", "step", "metrics", "recall@50").y == (0.25,)
    assert journal.keys("eval", "metrics") == ["recall@50"]


@pytest.mark.parametrize("value", [True, None, "3", float("nan"), float("inf"), [1], 10**400])
def test_number_refuses_what_cannot_be_drawn(value: object) -> None:
    assert number(value) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_number_keeps_finite_floats(value: float) -> None:
    assert number(value) == value
