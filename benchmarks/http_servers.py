"""Which HTTP server `crossbatch serve` should run on: the same application under each of them.

    pip install granian hypercorn
    python benchmarks/http_servers.py

Each server answers the same requests over the same bundle, in rounds that alternate between them:
CPU time of the server process per request at a fixed rate, and the most that it answers. Then each
gets requests that are hard to parse alike; `right` is what RFC 9112 asks for.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import uvloop

from http_load import at_once, at_rate
from serving import CLOCK_TICKS, requests_for
from synthetic_bundle import synthetic_bundle

ITEMS = 38_000
OUT = Path(__file__).parent / "out" / "serving"
SERVERS = ("uvicorn-httptools", "uvicorn-h11", "granian", "hypercorn")
POST = b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = b'{"history": ["b1"], "k": 1}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"
CLOSE = b"Connection: close\r\n\r\n"


def run(server: str, bundle: Path, port: int) -> None:
    """Serve the application without the project's own protocol limits."""
    from crossbatch.serving.server.live_bundle import LiveBundle
    from crossbatch.serving.server.run import SWITCH_SECONDS, ServeOptions, protected_app

    sys.setswitchinterval(SWITCH_SECONDS)
    app = protected_app({"main": LiveBundle("main", bundle)}, ServeOptions())
    if server.startswith("uvicorn"):
        import uvicorn

        kind = server.partition("-")[2]
        uvicorn.run(app, port=port, http=kind, ws="none", access_log=False, log_level="error")
    elif server == "granian":
        from granian.constants import Interfaces
        from granian.server.embed import Server

        embedded = Server(app, port=port, interface=Interfaces.ASGI, websockets=False)
        uvloop.run(embedded.serve())
    else:
        from hypercorn.asyncio import serve
        from hypercorn.config import Config

        config = Config()
        config.bind, config.errorlog = [f"127.0.0.1:{port}"], None
        uvloop.run(serve(app, config))


class Process:
    """One server on a port of its own."""

    def __init__(self, server: str, bundle: Path, port: int) -> None:
        self.name, self.port = server, port
        command = [sys.executable, __file__, "--run", server, str(bundle), str(port)]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=env)
        while self.talk(GET + CLOSE)[:12] != b"HTTP/1.1 200":
            assert self.process.poll() is None, f"{server} did not start"
            time.sleep(0.1)

    def talk(self, sent: bytes, *, half_close: bool = False) -> bytes:
        """All that comes back within two seconds of silence; empty without a connection."""
        answer = b""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(sent)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                while piece := connection.recv(1 << 16):
                    answer += piece
        except OSError:
            pass
        return answer

    def cpu(self) -> float:
        """CPU seconds that the process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def statuses(answer: bytes) -> list[str]:
    """The status of each answer."""
    return [part[:3].decode("latin-1") for part in answer.split(b"HTTP/1.1 ")[1:]]


def conformance(server: Process) -> dict[str, list[str]]:
    """Statuses of the answers to requests that servers parse differently."""
    hidden = GET + CLOSE
    body = POST + LENGTH
    chunks = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(BODY), BODY)
    trailer = chunks + b"0\r\nHost: evil.example\r\n\r\n" + hidden
    smuggled = POST + b"Content-Length: %d\r\n" % len(hidden) + UPGRADE + b"\r\n" + hidden
    long_head = GET + b"X-Long: " + b"x" * 40_000 + b"\r\n" + CLOSE
    return {
        "POST with Upgrade: h2c": statuses(server.talk(body + UPGRADE + b"\r\n" + BODY)),
        "a request inside such a body": statuses(server.talk(smuggled)),
        "Host in a trailer": statuses(server.talk(trailer)),
        "40 kB head in one write": statuses(server.talk(long_head)),
        "request, then garbage": statuses(server.talk(body + b"\r\n" + BODY + b"garbage\r\n\r\n")),
        "half-closed client": statuses(server.talk(body + b"\r\n" + BODY, half_close=True)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--run", nargs=3, metavar=("SERVER", "BUNDLE", "PORT"))
    parser.add_argument("--servers", nargs="+", default=list(SERVERS))
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=OUT, help="scratch folder")
    args = parser.parse_args()
    if args.run:
        run(args.run[0], Path(args.run[1]), int(args.run[2]))
        return
    bundle = args.work / f"youtube_dnn-{ITEMS}"
    if not bundle.exists():
        args.work.mkdir(parents=True, exist_ok=True)
        synthetic_bundle(bundle, ITEMS)
    running = []
    try:
        for number, server in enumerate(args.servers):
            running.append(Process(server, bundle, 8401 + number))
        measure(running, args)
        for server in running:
            print(json.dumps({"server": server.name, **conformance(server)}, indent=1))
    finally:
        for server in running:
            server.process.terminate()
            server.process.wait()


def measure(running: list[Process], args: argparse.Namespace) -> None:
    requests = requests_for(ITEMS)
    figures: dict[str, list[tuple[float, float, float, float]]] = {s.name: [] for s in running}
    for _ in range(args.rounds):
        for server in running:
            uvloop.run(at_once(server.port, requests, seconds=0.5))  # warm
            before = server.cpu()
            load = uvloop.run(at_rate(server.port, requests, rate=args.rate, seconds=args.seconds))
            cpu = 1e3 * (server.cpu() - before) / max(1, sum(load.statuses.values()))
            most = uvloop.run(at_once(server.port, requests, seconds=args.seconds))
            figures[server.name].append((cpu, load.quantile(0.5), load.quantile(0.99), most.rate()))
    print("server              CPU ms   p50 ms   p99 ms   most/s     (medians of the rounds)")
    for name, rounds in figures.items():
        cpu, p50, p99, most = (median(column) for column in zip(*rounds, strict=True))
        print(f"{name:<18} {cpu:>7.3f} {p50:>8.1f} {p99:>8.1f} {most:>8.0f}")


if __name__ == "__main__":
    main()
