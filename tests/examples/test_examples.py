"""Every example runs, is short, and prints a plausible result."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def run(script, *arguments):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_short(path):
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.slow
def test_the_loop_learns_with_and_without_a_bank():
    rates = [float(rate) for rate in re.findall(r"hit rate@20 ([\d.]+)", run("own_loop.py"))]
    assert len(rates) == 2
    assert min(rates) > 0.1  # 20 of 2,000 by chance: 0.01


@pytest.mark.slow
def test_a_csv_becomes_recommendations(tmp_path):
    output = run("csv_to_recommendations.py", "--steps", 200, "--out", tmp_path)
    ours, popular = map(float, re.search(r"recall@50 ([\d.]+), .* ([\d.]+)\n", output).groups())
    assert ours > popular
    assert (tmp_path / "bundle" / "bundle.json").is_file()
    output = run("csv_to_recommendations.py", tmp_path / "clicks.csv", "--steps", 50)
    assert re.search(r"after (\w+, ){2}\w+: (\w+, ){4}\w+\n", output)


@pytest.mark.slow
def test_a_new_item_lands_beside_items_of_its_category(tmp_path):
    output = run("content_cold_start.py", "--steps", 200, "--out", tmp_path)
    share, chance = map(float, re.search(r"saw: ([\d.]+) \(by chance ([\d.]+)\)", output).groups())
    assert share > chance
    category = re.search(r"brand new .* \((.*)\):\n", output).group(1)
    neighbours = re.findall(r"^  [\d.]+  .* \((.*)\)$", output, re.MULTILINE)
    assert len(neighbours) == 5
    assert neighbours.count(category) >= 3  # of many kinds


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_hold_no_outputs(path, capsys, monkeypatch):
    """Runs the cells in order in one namespace, as a notebook kernel would."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    assert cells
    names = {"__name__": "__main__"}
    for cell in cells:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        tree = ast.parse("".join(cell["source"]))
        exec(compile(tree, str(path), "exec"), names)
    CHECKS[path.stem](capsys.readouterr().out, names)


def compares_a_bank(printed, names):
    assert re.search(r"bank bank_staleness \{\d+: [\d.]+", printed)
    assert "in_batch bank_staleness {}" in printed
    assert set(names["results"]) == {"in_batch", "bank"}


def fits_a_data_frame(printed, names):
    import matplotlib.pyplot as plt

    assert len(plt.get_fignums()) == 3  # pictures
    plt.close("all")
    assert len(names["shown"]) >= 3
    assert names["evaluation"].means()["recall@50"] > 0.2  # 50 of 400 by chance: 0.125
    assert "lists agree: True" in printed


CHECKS = {"what_a_bank_does": compares_a_bank, "data_frame": fits_a_data_frame}
