"""A server imports nothing that only training needs."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import crossbatch.serving.server.run
heavy = ("torch._dynamo", "crossbatch.training", "crossbatch.negatives", "numba", "matplotlib")
print(*(name for name in heavy if name in sys.modules))
"""


def test_training_is_not_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
