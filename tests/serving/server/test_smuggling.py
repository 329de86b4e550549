"""Request smuggling: requests that a proxy could parse differently end the connection."""

from __future__ import annotations

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
    assert answer[9:12] in {b"400", b"408", b"413"}
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
