"""Puts the benchmarks, which are scripts outside the package, on the import path."""

import sys
from pathlib import Path

from ..reproduce.conftest import make_grid_run  # noqa: F401 (a fixture)

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
