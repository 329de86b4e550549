"""What was shown is logged, traffic is shared by key, another bundle answers in the shadow."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from crossbatch.errors import ConfigError
from crossbatch.serving import open_bundle
from crossbatch.serving.server.logs import open_log
from crossbatch.serving.server.run import ServeOptions, serve
from crossbatch.serving.server.service import key_share

from .running import RunningServer, wait_until

KEYS = [f"user-{number}" for number in range(40)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_key_has_the_same_share_everywhere() -> None:
    number = int(hashlib.blake2b(b"user-7", digest_size=7).hexdigest(), 16)
    assert key_share("user-7") == number / 2**56
    values = [key_share(f"k{number}") for number in range(4000)]
    assert all(0 <= value < 1 for value in values)
    for share in (0.1, 0.5):  # five standard deviations
        found = sum(value < share for value in values)
        assert abs(found - 4000 * share) < 5 * (4000 * share * (1 - share)) ** 0.5


def test_a_line_that_a_kill_cut_short_is_ended(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"request": "a"}\n{"requ')
    open_log(log)
    assert log.read_text() == '{"request": "a"}\n{"requ\n'
    open_log(log)
    assert log.read_text().count("\n") == 2
    assert os.fstat(open_log(Path("-"))).st_ino == os.fstat(1).st_ino
    with pytest.raises(ConfigError, match="--exposure-log"):
        open_log(tmp_path / "no" / "folder.jsonl")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"share": 1.5}, "--share must be 0 to 1, got 1.5"),
        ({"share": 0.5}, "need a second bundle"),
        ({"shadow": True}, "need a second bundle"),
        ({"log_histories": True}, "needs --exposure-log"),
    ],
)
def test_options_that_cannot_be_honoured(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        serve(tmp_path, ServeOptions(**options))


def test_exposures_shares_shadows_and_stages(
    mind_path: Path, youtube_path: Path, tmp_path: Path
) -> None:
    log = tmp_path / "shown.jsonl"
    words = ["--compare", str(youtube_path), "--share", "0.4", "--shadow"]
    versions = {
        "main": open_bundle(mind_path).version,
        "compare": open_bundle(youtube_path).version,
    }
    replies: dict[str, Any] = {}
    with RunningServer(mind_path, *words, "--exposure-log", str(log)) as running:
        for key in KEYS:
            body = {"history": ["i7"], "k": 3, "key": key, "filter": {"genre": ["Love", "Space"]}}
            reply = running.ask("/recommend", body, headers={"X-Request-ID": key}).json
            again = running.ask("/recommend", {**body, "history": ["i9"]}).json
            assert again["bundle"] == reply["bundle"]
            slot = "compare" if key_share(key) < 0.4 else "main"
            assert reply["bundle"]["version"] == versions[slot]
            replies[key] = slot, reply
        mains = sum(slot == "main" for slot, _ in replies.values())
        assert 0 < mains < len(KEYS)
        pinned = running.ask("/recommend", {"history": ["i7"], "bundle": "main", "key": KEYS[0]})
        assert pinned.json["bundle"]["version"] == versions["main"]
        assert running.ask("/items").json["bundle"]["version"] == versions["main"]
        own = {key for key, (slot, _) in replies.items() if slot == "main"}
        wait_until(lambda: len([line for line in lines(log) if line["request"] in KEYS]) >= 40)
        wait_until(lambda: {line["request"] for line in lines(log) if "shadow" in line} >= own)
        metrics = running.ask("/metrics").body.decode()
    for stage in ("tower", "search", "filter"):
        (count,) = [
            float(line.split()[-1])
            for line in metrics.splitlines()
            if line.startswith(f'crossbatch_stage_seconds_count{{stage="{stage}"}}')
        ]
        assert count > 0
    assert 'crossbatch_recommendations_total{shadow="true",slot="compare"}' in metrics
    for line in lines(log):
        assert set(line) - {"shadow"} == {"time", "request", "slot", "bundle", "items", "scores"}
        assert line["bundle"] == versions[line["slot"]]
        if line["request"] in replies and "shadow" not in line:
            slot, reply = replies[line["request"]]
            assert line["slot"] == slot
            assert line["items"] == [item["id"] for item in reply["items"]]
            assert line["scores"] == pytest.approx([item["score"] for item in reply["items"]])
        if "shadow" in line:
            assert line["slot"] == "compare"


def test_histories_are_logged_only_if_asked(mind_path: Path, tmp_path: Path) -> None:
    log = tmp_path / "shown.jsonl"
    with RunningServer(mind_path, "--exposure-log", str(log), "--log-histories") as running:
        history = ["i7", "i8", "\x9b2J\u202e"]
        running.ask("/recommend", {"history": history, "k": 3, "key": "secret"})
        wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    (line,) = lines(log)
    assert line["history"] == history
    assert "secret" not in log.read_text()
    assert log.read_bytes().isascii()  # on stdout, ids must not drive the terminal
