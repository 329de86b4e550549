"""Invalid requests: each gets a status and one sentence, and the server keeps running."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .running import Reply, RunningServer

GOOD = {"history": ["m1"], "k": 3}


def refused(reply: Reply, status: int, *words: str) -> None:
    """The answer has this status and names these words, and nothing from inside."""
    assert reply.status == status, reply.body
    assert reply.headers["content-type"] == "application/json"
    for word in words:
        assert word in reply.message
    for secret in (".py", "Traceback", "/tmp", "/home", "site-packages", "bundle.json", "pydantic"):
        assert secret not in reply.body.decode()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b'{"history": [}', b"\xff\xfe", b'{"history": ["m1"]'],
)  # fmt: skip
def test_malformed_json(server: RunningServer, body: bytes) -> None:
    reply = server.ask("/recommend", body)
    refused(reply, 400)


def test_deep_json_does_not_exhaust_the_stack(server: RunningServer) -> None:
    reply = server.ask("/recommend", b"[" * 100_000)
    refused(reply, 400)


@pytest.mark.parametrize("body", [[], "text", 7, None, True])
def test_json_of_another_shape(server: RunningServer, body: object) -> None:
    refused(server.ask("/recommend", json.dumps(body).encode()), 422)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"k": 0}, ["k:"]),
        ({"k": -1}, ["k:"]),
        ({"k": 10**9}, ["k:", "1000"]),
        ({"k": 10**400}, ["k:"]),
        ({"k": 2.5}, ["k:"]),
        ({"k": "20"}, ["k:"]),
        ({"k": True}, ["k:"]),
        ({"k": None}, ["k:"]),
        ({"history": "m1"}, ["history:"]),
        ({"history": None}, ["history:"]),
        ({"history": [7]}, ["history.0:"]),
        ({"history": [""]}, ["history.0:"]),
        ({"history": ["m1", "x" * 257]}, ["history.1:", "256"]),
        ({"history": ["m1"] * 1001}, ["history:", "1000"]),
        ({"exclude_seen": "yes"}, ["exclude_seen:"]),
        ({"bundle": "third"}, ["bundle:"]),
        ({"hisotry": []}, ["hisotry:"]),
        ({"user_features": [1]}, ["user_features"]),
        ({"user_features": {str(n): 1 for n in range(101)}}, ["user_features", "100"]),
        ({"user_features": {"agee": 3}}, ["agee", "age"]),
        ({"user_features": {"age": "old"}}, ["age", "numeric"]),
        ({"user_features": {"age": [1, 2]}}, ["age"]),
        ({"user_features": {"age": 1e308}}, ["age"]),
        ({"user_features": {"age": {"deep": 1}}}, ["user_features"]),
        ({"user_features": {"age": 10**400}}, ["age", "numeric"]),
        ({"user_features": {"age": int("9" * 4_000)}}, ["age"]),
        ({"user_features": {"age": []}}, ["age", "numeric"]),
        ({"user_features": {"country": ["ch"] * 1_000}}, ["country", "not a list"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_invalid_values(server: RunningServer, change: dict[str, object], words: list[str]) -> None:
    refused(server.ask("/recommend", GOOD | change), 422, *words)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_json_does_not_have(server: RunningServer, number: str) -> None:
    for body in (f'"user_features": {{"age": {number}}}', f'"k": {number}'):
        reply = server.ask("/recommend", f'{{"history": ["m1"], {body}}}'.encode())
        refused(reply, 422)


def test_a_lone_surrogate_is_no_text(server: RunningServer) -> None:
    reply = server.ask("/recommend", b'{"history": ["\\ud800"]}')
    refused(reply, 400, "JSON")


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_must_say_that_it_is_json(server: RunningServer, kind: str) -> None:
    """So that no other site's page can post it without asking the browser first."""
    reply = server.ask("/recommend", json.dumps(GOOD).encode(), headers={"Content-Type": kind})
    refused(reply, 415)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/similar", ["id:"]),
        ("/similar?id=", ["id:"]),
        ("/similar?id=m1&k=0", ["k:"]),
        ("/similar?id=m1&k=1000000000", ["k:"]),
        ("/similar?id=m1&k=three", ["k:"]),
        ("/similar?id=m1&bundle=x", ["bundle:"]),
        ("/similar?id=" + "x" * 257, ["id:"]),
        ("/items?limit=0", ["limit:"]),
        ("/items?limit=101", ["limit:"]),
        ("/items?offset=-1", ["offset:"]),
        ("/items?offset=10001", ["offset:"]),
        ("/items?search=" + "x" * 201, ["search:"]),
        ("/items?" + "&".join(["id=m1"] * 101), ["id:"]),
    ],
)
def test_invalid_query_strings(server: RunningServer, path: str, words: list[str]) -> None:
    refused(server.ask(path), 422, *words)


def test_an_unknown_item_has_no_neighbours(server: RunningServer) -> None:
    refused(server.ask("/similar?id=nobody"), 404, "nobody")


@pytest.mark.parametrize(
    "path",
    ["/nothing", "/page/", "/page/../app.py", "/page/%2e%2e/app.py", "/docs", "//", "/health/"],
)
def test_other_paths_are_not_found(server: RunningServer, path: str) -> None:
    refused(server.ask(path), 404)


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/recommend"), ("POST", "/items"), ("PUT", "/"), ("TRACE", "/health")],
)
def test_other_methods(server: RunningServer, method: str, path: str) -> None:
    reply = server.ask(path, method=method)
    refused(reply, 405)
    assert reply.headers["allow"] in {"GET, HEAD", "POST"}


@pytest.mark.parametrize("size", [256 * 1024 + 1, 3_000_000])
def test_a_huge_body_is_refused(server: RunningServer, size: int) -> None:
    refused(server.ask("/recommend", b" " * size), 413, "262144")


def test_a_huge_body_in_pieces_is_refused(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(
            b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        for _ in range(8):
            connection.sendall(piece)
        connection.sendall(b"0\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


def test_a_full_body_of_the_largest_size_is_read(server: RunningServer) -> None:
    body = json.dumps(GOOD).encode()
    assert server.ask("/recommend", body.ljust(256 * 1024)).status == 200


@pytest.mark.parametrize("pieces", [1, 2])
def test_endless_heads_are_refused(server: RunningServer, pieces: int) -> None:
    with server.connect() as connection:
        head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 40_000
        step = -(-len(head) // pieces)
        for start in range(0, len(head), step):
            connection.sendall(head[start : start + step])
        assert connection.recv(100).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    "bytes_sent",
    [b"nonsense\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1\r\n\r\n"],
)
def test_what_is_not_http(server: RunningServer, bytes_sent: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(bytes_sent)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["status"] == 400


def test_other_versions_of_http(server: RunningServer) -> None:
    with server.connect() as connection:
        connection.sendall(b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n")
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 505 ")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost.evil"])
def test_without_a_token_only_loopback_names_are_answered(server: RunningServer, host: str) -> None:
    """A page elsewhere may point its own name at this machine; it must not read through it."""
    refused(server.ask("/health", headers={"Host": host}), 421)


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1", "127.9.9.9:1", "[::1]:80", "LOCALHOST"]
)
def test_loopback_names_are_answered(server: RunningServer, host: str) -> None:
    assert server.ask("/health", headers={"Host": host}).status == 200


def test_responses_carry_protective_headers(server: RunningServer) -> None:
    for path in ("/", "/health", "/nothing", "/page/app.js"):
        headers = server.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_the_server_still_answers_after_all_that(server: RunningServer) -> None:
    assert server.ask("/recommend", GOOD).status == 200
    assert not [entry for entry in server.log if entry["event"] in {"fault", "plain"}]
