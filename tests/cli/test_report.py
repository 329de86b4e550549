from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from crossbatch.cli import app
from crossbatch.errors import DataError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    config = {"model": {"name": "mind"}, "sampler": {"name": "in_batch"}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_writes_what_was_asked_for_and_says_where(run: Path, tmp_path: Path) -> None:
    out, markdown = tmp_path / "r.html", tmp_path / "r.md"
    arguments = ["report", str(run), "--out", str(out), "--markdown", str(markdown)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [str(out), str(markdown)]
    assert out.read_text().startswith("<!doctype html>")
    assert markdown.read_text().startswith("# crossbatch report")


def test_figures(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    events = [{"event": "train", "step": step, "loss": 1.0 / step} for step in (1, 2)]
    (run / "journal.jsonl").write_text("\n".join(map(json.dumps, events)))
    arguments = ["report", str(run), "--out", str(tmp_path / "r.html")]
    done = CliRunner().invoke(app, [*arguments, "--figures", str(tmp_path / "f")])
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "f").iterdir()) == ["loss.pdf", "loss.png"]


def test_the_page_is_written_here_by_default(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0
    assert (tmp_path / "report.html").is_file()


def test_what_is_not_a_run_is_a_data_error(tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(out)])
    assert isinstance(done.exception, DataError)
    assert not out.exists()
