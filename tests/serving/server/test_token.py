"""A server with a token discloses nothing without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .running import RunningServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def guarded(youtube_path: Path) -> Iterator[RunningServer]:
    with RunningServer(youtube_path, env={"CROSSBATCH_TOKEN": TOKEN}) as running:
        yield running


@pytest.mark.parametrize(
    "header",
    [
        None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", f"bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x", f"Bearer {TOKEN} {TOKEN}", TOKEN, "Bearer \xff\xfe",
    ],
)  # fmt: skip
def test_wrong_tokens(guarded: RunningServer, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for path in ("/items", "/similar?id=m1", "/metrics", "/openapi.json", "/nothing"):
        reply = guarded.ask(path, headers=headers)
        assert reply.status == 401, path
        assert reply.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in reply.message
    assert guarded.ask("/recommend", {"history": []}, headers=headers).status == 401
    assert guarded.ask("/health", headers=headers).json == {"status": "ok", "bundles": None}


def test_the_token_opens_everything(guarded: RunningServer) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "shop.example"}
    assert guarded.ask("/recommend", {"history": ["m1"]}, headers=headers).status == 200
    assert guarded.ask("/health", headers=headers).json["bundles"]["main"]["items"] == 60


def test_the_page_itself_is_open_and_discloses_nothing(guarded: RunningServer) -> None:
    page = guarded.ask("/")
    assert page.status == 200
    assert b"films-youtube" not in page.body


def test_the_token_is_in_no_log(guarded: RunningServer) -> None:
    guarded.ask("/items", headers={"Authorization": f"Bearer {TOKEN}"})
    assert TOKEN not in str(guarded.log)
