"""Request smuggling: requests that a proxy could parse differently end the connection."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .running import RunningServer

POST = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HIDDEN = b"GET /items HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMBIGUOUS = {
    "two lengths": b"Content-Length: 2\r\nContent-Length: 60\r\n\r\n{}",
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks not last": b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "negative length": b"Content-Length: -1\r\n\r\n",
    "length with a sign": b"Content-Length: +2\r\n\r\n{}",
    "huge length": b"Content-Length: 99999999999999999999999\r\n\r\n{}",
    "bad chunk size": b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
    "blank before the colon": b"Content-Length : 2\r\n\r\n{}",
    "bare line feed in a value": b"X-A: 1\nX-B: 2\x00\r\n\r\n",
    "folded header": b"X-A: 1\r\n 2\r\nContent-Length : 2\r\n\r\n{}",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_requests_end_the_connection(server: RunningServer, name: str) -> None:
    with server.connect() as connection:
        connection.sendall(POST + AMBIGUOUS[name] + HIDDEN)
        answer = connection.makefile("rb").read()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer[9:12] in {b"400", b"408", b"413", b"501"}
    assert b'"items"' not in answer


@pytest.mark.parametrize(
    "headers",
    [
        b"Host: evil.example\r\nHost: localhost\r\n",
        b"Host: localhost\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    ],
)
def test_headers_that_decide_may_not_come_twice(server: RunningServer, headers: bytes) -> None:
    """The last one once won: a proxy in front may have checked the first."""
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + headers + b"Connection: close\r\n\r\n")
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")


BODY = json.dumps({"history": ["m1"], "k": 2}).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CLOSE = b"Connection: close\r\n\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


def talk(server: RunningServer, sent: bytes, *, half_close: bool = False) -> list[bytes]:
    """Each answer until the server closes the connection, from its status on."""
    with server.connect() as connection:
        connection.sendall(sent)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read().split(b"HTTP/1.1 ")[1:]


def is_list(answer: bytes) -> bool:
    """Whether this is a good answer with two items."""
    found = answer.partition(b"\r\n\r\n")[2]
    return answer.startswith(b"200 ") and len(json.loads(found)["items"]) == 2


@pytest.mark.parametrize("protocol", [b"h2c", b"TLS/1.0", b"websocket", b"nonsense"])
def test_bug_a_proposed_upgrade_let_the_body_pass_as_a_request(
    server: RunningServer, protocol: bytes
) -> None:
    """Java's client proposes HTTP/2 in every request: the proposal may be ignored, not the body."""
    upgrade = b"Upgrade: " + protocol + b"\r\nHTTP2-Settings: AAEAAEAA\r\n"
    upgrade += b"Connection: Upgrade, HTTP2-Settings\r\n"
    answers = talk(server, POST + LENGTH + upgrade + b"\r\n" + BODY + GET + CLOSE)
    assert is_list(answers[0])
    assert answers[1].startswith(b"200 ")  # the connection can be used again
    hidden = b"Content-Length: %d\r\n" % len(HIDDEN)
    answers = talk(server, POST + hidden + upgrade + b"\r\n" + HIDDEN + GET + CLOSE)
    assert [answer[:3] for answer in answers] == [b"400", b"200"]
    assert not [entry for entry in server.log if entry["event"] == "Unsupported upgrade request."]


def test_bug_trailers_counted_as_headers(server: RunningServer) -> None:
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n" % (len(BODY), BODY)
    answers = talk(server, POST + chunks + b"Host: evil.example\r\n\r\n" + GET + CLOSE)
    assert is_list(answers[0])
    assert len(answers) == 2


def test_bug_garbage_took_the_answer_of_the_request_before_it(server: RunningServer) -> None:
    first, second = talk(server, POST + LENGTH + b"\r\n" + BODY + b"garbage\r\n\r\n")
    assert is_list(first)
    assert second.startswith(b"400 ")


@pytest.mark.parametrize("requests", [1, 3])
def test_bug_half_closed_clients_got_no_answer(server: RunningServer, requests: int) -> None:
    whole = POST + LENGTH + b"\r\n" + BODY
    answers = talk(server, requests * whole, half_close=True)
    assert len(answers) == requests
    assert all(map(is_list, answers))
    assert talk(server, whole[:-3], half_close=True) == []  # no request ever came to its end


@pytest.mark.parametrize("path", ["/", "/health", "/items", "/page/app.js"])
def test_head_is_get_without_a_body(server: RunningServer, path: str) -> None:
    head, get = server.ask(path, method="HEAD"), server.ask(path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-length"] == str(len(get.body))
    assert server.ask("/recommend", method="HEAD").status == 405


def test_bug_a_long_head_in_one_write_was_read(server: RunningServer) -> None:
    for field in (b"X-Long: " + b"x" * 33_000, b"X: y\r\n" * 6_000 + b"X: y"):
        answers = talk(server, GET + field + b"\r\n\r\n")
        assert [answer[:3] for answer in answers] == [b"431"]
    assert talk(server, GET + b"X-Long: " + b"x" * 30_000 + b"\r\n" + CLOSE)[0][:3] == b"200"
