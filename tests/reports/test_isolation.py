"""Reports must render where neither torch nor polars nor matplotlib is installed."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import MakeRun

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "polars", "matplotlib", "safetensors", "typer", "rich"}:
            raise ModuleNotFoundError(name, name=name)  # as where it is not installed

sys.meta_path.insert(0, Absent())
from pathlib import Path
from crossbatch.errors import ConfigError
from crossbatch.reports.figures import write_figures
from crossbatch.reports.html import write_html
from crossbatch.reports.markdown import write_markdown
from crossbatch.reports.runs import read_runs

folder, out = map(Path, sys.argv[1:])
runs = read_runs([folder])
write_html(runs, out / "r.html")
write_markdown(runs, out / "r.md")
try:
    write_figures(runs, out / "figures")
except ConfigError as error:
    print(error)
ours = {name for name in sys.modules if name.startswith("crossbatch.")}
names = ("reports", "bootstrap", "cache", "errors", "files", "printing", "progress", "remote")
ALLOWED = tuple(f"crossbatch.{name}" for name in names)
foreign = sorted(n for n in ours if not n.startswith(ALLOWED))
print(foreign)
"""


def test_numpy_and_jinja2_are_enough(make_run: MakeRun, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [str(make_run("a", per_user={"recall@50": [0.1, 0.2]})), str(out)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    message, foreign = done.stdout.splitlines()
    assert "pip install 'crossbatch[report]'" in message
    assert foreign == "[]"
    assert sorted(path.name for path in out.iterdir()) == ["r.html", "r.md"]
