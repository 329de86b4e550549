"""Files that are written whole, and what kills leave beside them."""

import os
import subprocess
import sys

from crossbatch.reports.output import write_whole


def dead_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_writer_left_is_swept_by_the_next(tmp_path):
    page = tmp_path / "a[1].json"
    left = tmp_path / f".a[1].json.{dead_process()}.partial"
    left.write_text("half")
    write_whole(page, b"whole")
    assert page.read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a[1].json"]


def test_what_a_living_writer_holds_is_left_alone(tmp_path):
    held = tmp_path / f".page.html.{os.getppid()}.partial"
    other = tmp_path / ".page.html.mine.partial"
    for path in (held, other):
        path.write_text("half")
    write_whole(tmp_path / "page.html", b"whole")
    assert held.exists()
    assert other.exists()
