"""A log larger than the memory that preparation may have."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pytest

if TYPE_CHECKING:
    from pathlib import Path

MB = 2**20
ROWS, PARTS, USERS, ITEMS = 14_000_000, 14, 100_000, 20_000
LIMIT = 704 * MB  # of writable private memory; an import of the command alone takes about 100 MB
CHILD = """
import resource, sys
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
"""
PREPARE = (
    CHILD
    + """
from crossbatch.cli import app
app(standalone_mode=False)
status = open("/proc/self/status").read()
print(status.partition("VmHWM:")[2].split()[0])
"""
)
IN_MEMORY = (
    CHILD
    + """
import polars
polars.read_parquet(sys.argv[1]).sort("user", "timestamp")
"""
)


def child(code: str, limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, limit, *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A partitioned log of long ids, and how many bytes its values are."""
    folder = tmp_path_factory.mktemp("lake")
    rng = np.random.default_rng(0)
    users, items = (
        pl.Series([rng.bytes(18).hex() for _ in range(size)]) for size in (USERS, ITEMS)
    )
    size = 0
    for number in range(PARTS):
        rows = ROWS // PARTS
        frame = pl.DataFrame(
            {
                "user": users.gather(rng.integers(USERS, size=rows)),
                "item": items.gather((ITEMS * rng.random(rows) ** 2).astype(np.int64)),
                "timestamp": 1_400_000_000 + 86_400 * rng.integers(700, size=rows),
            }
        )
        (folder / f"part={number:02d}").mkdir()
        frame.write_parquet(folder / f"part={number:02d}" / "log.parquet")
        size += rows * (36 + 36 + 8)
    return folder, size


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits and peaks are read as Linux has them")
def test_a_log_larger_than_the_memory_limit(tmp_path: Path, lake: tuple[Path, int]) -> None:
    folder, size = lake
    assert 0.7 * size > LIMIT
    options = ("--format", "table", "--split", "time", "--quiet")
    peaks, sums = [], []
    for name, limit in (("free", 0), ("limited", LIMIT)):
        out = tmp_path / name
        done = child(PREPARE, limit, "prepare", folder, "--out", out, *options)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout) * 1024)
        sums.append(json.loads((out / "manifest.json").read_text())["checksum"])
    assert sums[0] == sums[1]
    assert peaks[1] < size / 2
    # the limit is one: what holds the log in memory does not pass
    held = child(IN_MEMORY, LIMIT, folder)
    assert held.returncode != 0
    assert "memory" in held.stderr.lower(), held.stderr
