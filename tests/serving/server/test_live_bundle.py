"""A live bundle: when a change at its path is loaded, and when it is refused."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from crossbatch.serving import BundleError, open_bundle
from crossbatch.serving.server import live_bundle
from crossbatch.serving.server.live_bundle import LiveBundle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, mind_path: Path) -> Path:
    shutil.copytree(mind_path, tmp_path / "bundle")
    return tmp_path / "bundle"


def replace(place: Path, source: Path) -> None:
    shutil.rmtree(place)
    shutil.copytree(source, place)


def test_a_change_counts_once_the_files_stay_the_same(place: Path, youtube_path: Path) -> None:
    live = LiveBundle("main", place)
    assert not live.changed()
    replace(place, youtube_path)
    assert not live.changed()  # it may still be on its way
    assert live.changed()
    before = live.serving
    assert live.reload()
    assert live.serving.bundle.name == "films-youtube"
    assert before.bundle.recommend([["m1"]], 3)[0].items  # the old one still answers
    assert not live.changed()


def test_a_refused_bundle_is_not_tried_again_until_it_changes(
    place: Path, youtube_path: Path
) -> None:
    live = LiveBundle("main", place)
    replace(place, youtube_path)
    (place / "item_counts.npy").write_bytes(b"")
    assert not live.reload()
    assert live.refused
    assert live.serving.bundle.name == "films-mind"
    assert "refused" in live.describe()["problem"]
    assert not live.changed()
    assert not live.changed()
    replace(place, youtube_path)
    assert not live.changed()
    assert live.changed()
    assert live.reload()
    assert live.describe()["problem"] is None


def test_a_folder_that_is_gone_is_no_change(place: Path) -> None:
    live = LiveBundle("main", place)
    shutil.rmtree(place)
    assert not live.changed()
    assert not live.changed()
    assert live.serving.bundle.recommend([["m1"]], 3)[0].items


def test_a_folder_replaced_while_it_is_opened_is_opened_again(
    place: Path, youtube_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def slowly(path: Path, *, verify: bool) -> object:
        assert verify
        bundle = open_bundle(path)
        opened.append(bundle.name)
        if len(opened) == 1:
            replace(place, youtube_path)
        return bundle

    monkeypatch.setattr(live_bundle, "open_bundle", slowly)
    assert LiveBundle("main", place).serving.bundle.name == "films-youtube"
    assert opened == ["films-mind", "films-youtube"]


def test_a_folder_that_keeps_changing_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restless(path: Path, *, verify: bool) -> object:
        bundle = open_bundle(path, verify=verify)
        (place / "item_counts.npy").touch()
        return bundle

    monkeypatch.setattr(live_bundle, "open_bundle", restless)
    with pytest.raises(BundleError, match="keeps changing"):
        LiveBundle("main", place)


def test_the_search_over_titles_is_ready_before_the_new_bundle_serves(
    place: Path, youtube_path: Path
) -> None:
    live = LiveBundle("main", place)
    live.serving.items.titles()
    replace(place, youtube_path)
    assert live.reload()
    assert live.serving.items.searchable


def test_bug_circular_links_ended_the_watch(place: Path, mind_path: Path) -> None:
    link = place.with_name("link")
    link.symlink_to(place)
    live = LiveBundle("main", link)
    link.unlink()
    link.symlink_to("link")
    assert not live.changed()
    assert not live.reload()
    link.unlink()
    link.symlink_to(mind_path)
    assert not live.changed()
    assert live.changed()
    assert live.reload()
