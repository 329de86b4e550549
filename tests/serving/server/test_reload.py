"""A bundle replaced while the server runs: no request fails, and a broken bundle is refused."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from crossbatch.serving import open_bundle

from .running import RunningServer, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAST = "from crossbatch.serving.server import service\nservice.WATCH_SECONDS = 0.05"


@pytest.fixture
def place(tmp_path: Path, mind_path: Path) -> Path:
    """Where the server's bundle lies; at first it is MIND's."""
    shutil.copytree(mind_path, tmp_path / "bundle")
    return tmp_path / "bundle"


@pytest.fixture
def watching(place: Path) -> Iterator[RunningServer]:
    with RunningServer(place, "--watch", before=FAST) as running:
        yield running


def replace(place: Path, source: Path) -> None:
    """Put a copy of another bundle in its place, as `crossbatch export --overwrite` does."""
    fresh = place.with_name("fresh")
    shutil.copytree(source, fresh)
    place.rename(place.with_name("old"))
    fresh.rename(place)
    shutil.rmtree(place.with_name("old"))


def version(server: RunningServer) -> str:
    return str(server.ask("/recommend", {"history": ["m1"]}).json["bundle"]["version"])


def test_a_bundle_is_replaced_refused_and_replaced_again(
    watching: RunningServer, place: Path, mind_path: Path, youtube_path: Path
) -> None:
    first, second = open_bundle(mind_path).version, open_bundle(youtube_path).version
    assert version(watching) == first
    watching.ask("/items?search=film")  # the search of titles is built
    replace(place, youtube_path)
    wait_until(lambda: version(watching) == second)
    assert watching.ask("/health").json["bundles"]["main"]["name"] == "films-youtube"
    assert watching.wait_for_event("reloaded")["version"] == second
    assert f'version="{first}"' not in watching.ask("/metrics").body.decode()

    broken = place.with_name("broken")
    shutil.copytree(mind_path, broken)
    with (broken / "item_vectors.npy").open("r+b") as file:
        file.truncate(500)
    replace(place, broken)
    refused = watching.wait_for_event("reload refused")
    assert "item_vectors.npy" in refused["reason"]  # the log tells which file
    health = watching.ask("/health")
    assert (health.status, health.json["status"]) == (200, "stale")
    assert "refused" in health.json["bundles"]["main"]["problem"]
    assert str(place) not in health.body.decode()
    assert version(watching) == second  # the old one keeps serving

    replace(place, mind_path)
    wait_until(lambda: version(watching) == first)
    assert watching.ask("/health").json["status"] == "ok"


@pytest.mark.parametrize("damage", ["foreign", "gone", "altered"])
def test_bad_bundles_are_refused_on_a_signal_too(
    server_on_link: tuple[RunningServer, Path], youtube_path: Path, tmp_path: Path, damage: str
) -> None:
    running, link = server_on_link
    before = version(running)
    target = tmp_path / damage
    if damage == "foreign":
        target.mkdir()
        (target / "bundle.json").write_text('{"kind": "something else"}')
    elif damage == "altered":
        shutil.copytree(youtube_path, target)
        data = bytearray((target / "item_vectors.npy").read_bytes())
        data[-1] ^= 1
        (target / "item_vectors.npy").write_bytes(data)
    refused = sum(entry["event"] == "reload refused" for entry in running.log)
    turn(link, target)
    running.tell(signal.SIGHUP)
    running.wait_for_event("reload refused", refused + 1)
    assert version(running) == before


@pytest.fixture(scope="module")
def server_on_link(
    mind_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, Path]]:
    link = tmp_path_factory.mktemp("links") / "current"
    link.symlink_to(mind_path)
    with RunningServer(link) as running:
        yield running, link


def turn(link: Path, target: Path) -> None:
    """Let a link point elsewhere in one step."""
    fresh = link.with_name("turning")
    fresh.symlink_to(target)
    fresh.rename(link)


def test_a_link_is_followed_on_a_signal(
    server_on_link: tuple[RunningServer, Path], mind_path: Path, youtube_path: Path
) -> None:
    running, link = server_on_link
    turn(link, youtube_path)
    running.tell(signal.SIGHUP)
    wait_until(lambda: version(running) == open_bundle(youtube_path).version)
    turn(link, mind_path)
    running.tell(signal.SIGHUP)
    wait_until(lambda: version(running) == open_bundle(mind_path).version)


def outcomes(server: RunningServer) -> int:
    return sum(entry["event"] in {"reloaded", "reload refused"} for entry in server.log)


@pytest.mark.slow
def test_a_soak_with_reloads_loses_no_request(
    watching: RunningServer, place: Path, mind_path: Path, youtube_path: Path
) -> None:
    """Eight clients ask without a pause while the bundle is replaced, well and badly."""
    stop, seen, counts = threading.Event(), set[str](), [0] * 8
    failures: list[BaseException] = []

    def client(which: int) -> None:
        try:
            while not stop.is_set():
                reply = watching.ask("/recommend", {"history": ["m1", "i7"], "k": 5})
                assert reply.status == 200, reply.body
                assert len(reply.json["items"]) == 5
                seen.add(reply.json["bundle"]["version"])
                counts[which] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=client, args=(which,)) for which in range(8)]
    for thread in threads:
        thread.start()
    broken = place.with_name("broken")
    shutil.copytree(mind_path, broken)
    os.truncate(broken / "item_counts.npy", 200)
    for number, source in enumerate([youtube_path, mind_path, broken] * 10, 1):
        replace(place, source)
        wait_until(partial(lambda wanted: outcomes(watching) >= wanted, number))
    wait_until(lambda: failures or min(counts) > 10)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == {open_bundle(path).version for path in (mind_path, youtube_path)}
    assert not [entry for entry in watching.log if entry["event"] == "fault"]
