from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from crossbatch.errors import ConfigError
from crossbatch.reports import figures
from crossbatch.reports.plots import training_plots
from crossbatch.reports.runs import read_runs
from crossbatch.reports.variants import group_runs

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import MakeRun


def test_without_matplotlib_the_remedy_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"crossbatch\[report\]"):
        figures.write_figures(read_runs([make_run("a")]), tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.fixture
def runs(make_run: MakeRun) -> list[Path]:
    pytest.importorskip("matplotlib")
    users = {"recall@50": [0.1, 0.2, 0.3] * 10}
    more = {"recall@50": [0.2, 0.2, 0.3] * 10}
    return [
        make_run("a", per_user=users),
        make_run("b", sampler="mixed", per_user=more),
        make_run("c", model="gru4rec", sampler="$odd$ _name", per_user=more),
    ]


def test_every_figure_is_a_png_and_a_pdf(runs: list[Path], tmp_path: Path) -> None:
    written = figures.write_figures(read_runs(runs), tmp_path / "f")
    names = [
        f"{name}.{kind}" for name in ("recall", "ndcg", "loss", "gain") for kind in ("png", "pdf")
    ]
    assert [path.name for path in written] == names
    for path in written:
        signature = {".png": b"\x89PNG\r\n\x1a\n", ".pdf": b"%PDF-"}[path.suffix]
        assert path.read_bytes().startswith(signature)
        assert path.stat().st_size > 5000


def test_same_runs_same_bytes(runs: list[Path], tmp_path: Path) -> None:
    one = figures.write_figures(read_runs(runs[:1]), tmp_path / "one")
    two = figures.write_figures(read_runs(runs[:1]), tmp_path / "two")
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_axes_are_labelled_and_lines_are_the_journals(runs: list[Path]) -> None:
    from matplotlib.figure import Figure

    plot = training_plots(group_runs(read_runs(runs[:1])), "recall@50")[0]
    axes = Figure().subplots()
    figures._draw_lines(axes, plot)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "Recall@50, %")
    assert list(axes.lines[0].get_xdata()) == [100, 200, 300]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([5, 8, 7])


def test_a_run_without_journal_gives_no_curves(make_run: MakeRun, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run("a", journal=None)
    assert figures.write_figures(read_runs([run]), tmp_path / "f") == []
