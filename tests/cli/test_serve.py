"""`crossbatch serve`: mistakes are one sentence and exit code 2, before anything is opened."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from crossbatch.cli import main
from crossbatch.errors import ConfigError
from crossbatch.serving.server.guard import is_loopback
from crossbatch.serving.server.run import ServeOptions

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.4", "::", "example.org", ""])
def test_an_open_address_needs_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        ServeOptions(host=host)
    assert ServeOptions(host=host, token="x" * 16).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    assert ServeOptions(host=host).token is None


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        ServeOptions(token="secret")


def test_mistakes_end_with_code_2_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "token"
    empty.write_text("\n")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = [
            ([str(tmp_path / "nothing"), "--port", "0"], "no bundle"),
            ([str(tmp_path), "--host", "0.0.0.0"], "--token-file"),
            ([str(tmp_path), "--token-file", str(empty)], "empty"),
            ([str(tmp_path), "--token-file", str(tmp_path / "nothing")], "No such file"),
            ([str(tmp_path), "--port", port], "cannot listen"),
        ]
        for arguments, words in cases:
            monkeypatch.setattr(sys, "argv", ["crossbatch", "serve", *arguments])
            with pytest.raises(SystemExit) as stopped:
                main()
            assert stopped.value.code == 2
            said = capsys.readouterr().err
            assert words in said
            assert len(said.strip().splitlines()) == 1
