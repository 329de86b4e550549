"""`crossbatch serve --workers`: several processes behind one address."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from crossbatch.serving import open_bundle

from .running import RunningServer, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def answered(server: RunningServer) -> float:
    """How many requests for recommendations the metrics count."""
    text = server.ask("/metrics").body.decode()
    pattern = r'crossbatch_requests_total\{path="/recommend",status="200"\} (\S+)'
    return sum(map(float, re.findall(pattern, text)))


@pytest.mark.slow
def test_workers_share_an_address_and_are_replaced(youtube_path: Path) -> None:
    with RunningServer(youtube_path, "--workers", "2") as server:
        workers = server.wait_for_event("listening")["workers"]
        assert len(set(workers)) == 2
        health = server.ask("/health").json
        replies = [server.ask("/recommend", {"history": [], "k": 2}).json for _ in range(20)]
        assert {reply["bundle"]["version"] for reply in replies} == {
            health["bundles"]["main"]["version"]
        }
        # A worker counts a request after its answer is out, and another may give the metrics.
        wait_until(lambda: answered(server) == 20)  # of both workers

        os.kill(workers[0], signal.SIGKILL)
        started = server.wait_for_event("worker started")["pid"]
        assert started not in workers
        assert server.ask("/recommend", {"history": [], "k": 2}).status == 200
        wait_until(lambda: answered(server) == 21)  # those of the lost worker are not forgotten

        server.tell(signal.SIGHUP)
        server.wait_for_event("reloaded", 2)
        server.tell(signal.SIGTERM)
        assert server.wait() == 0
        assert not any(map(alive, (workers[1], started)))


@pytest.mark.slow
def test_bug_metrics_of_workers_kept_replaced_bundles(
    tmp_path: Path, mind_path: Path, youtube_path: Path
) -> None:
    place = tmp_path / "bundle"
    place.symlink_to(mind_path)
    with RunningServer(place, "--workers", "2") as server:
        server.wait_for_event("listening")

        def shown() -> set[tuple[str, str]]:
            text = server.ask("/metrics").body.decode()
            return set(re.findall(r'crossbatch_bundle_info\{.*version="(\w+)"\} (\S+)', text))

        first, second = open_bundle(mind_path).version, open_bundle(youtube_path).version
        assert shown() == {(first, "1.0")}
        place.unlink()
        place.symlink_to(youtube_path)
        server.tell(signal.SIGHUP)
        server.wait_for_event("reloaded", 2)
        wait_until(lambda: shown() == {(second, "1.0")})


@pytest.mark.slow
def test_workers_end_with_their_parent(youtube_path: Path) -> None:
    with RunningServer(youtube_path, "--workers", "2") as server:
        workers = server.wait_for_event("listening")["workers"]
        server.tell(signal.SIGKILL)
        wait_until(lambda: not any(map(alive, workers)))


@pytest.mark.slow
def test_a_bundle_that_cannot_be_opened_is_said_once(tmp_path: Path) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "crossbatch", "serve", str(tmp_path), "--workers", "3"]
    done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("no bundle") == 1, done.stderr
