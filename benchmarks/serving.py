"""How fast `crossbatch serve` starts and answers: a bounded load test over loopback.

    python benchmarks/serving.py                              # 38,000 items, then to a million
    python benchmarks/serving.py --items 38000 --rate 1000    # the target alone

Server and client are two processes on the same cores. For each size of the catalogue the client
first keeps 64 connections busy (the most that the server can do), then sends requests on a fixed
schedule (`--rate` for the first size, at most half of what it can do for the others) and counts
each latency from the moment at which its request was due. A request is one history of 20 items and
asks for 20 recommendations with titles.

Wall-clock numbers are only meaningful on an otherwise idle machine; the load average is printed.
The server's CPU time per request depends less on other processes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from http_load import Load, at_once, at_rate, post
from measure.machine import describe
from synthetic_bundle import cluster_history, synthetic_bundle

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
HISTORIES = 1_000
OUT = Path(__file__).parent / "out" / "serving"
HEAD = (
    "     items  index  start s  (CPU)  most/s  CPU ms  asked/s  answered/s  p50 ms  p99 ms  max ms"
    "  failed    MB"
)
LINE = (
    "{items:>10,} {index:>6} {start_seconds:>8} {start_cpu:>6} {most_per_second:>7} {cpu_ms:>7} "
    "{asked_per_second:>8} {answered_per_second:>11} {p50:>7} {p99:>7} {worst:>7} {failed:>7} "
    "{memory:>5}"
)


@dataclass(frozen=True)
class Row:
    """One size of the catalogue; milliseconds and megabytes."""

    items: int
    index: str
    start_seconds: float
    start_cpu: float
    most_per_second: float
    cpu_ms: float
    asked_per_second: float
    answered_per_second: float
    p50: float
    p99: float
    worst: float
    failed: int
    memory: float


class Server:
    """`crossbatch serve` as a process."""

    def __init__(self, bundle: Path, log: Path) -> None:
        self._log = log.open("w+")
        started = time.perf_counter()
        command = [sys.executable, "-m", "crossbatch", "serve", str(bundle), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self._log)
        self.port = self._wait_for_port(log)
        with urllib.request.urlopen(f"http://localhost:{self.port}/health") as reply:
            assert reply.status == 200
        self.start_seconds, self.start_cpu = time.perf_counter() - started, self.cpu_seconds()

    def _wait_for_port(self, log: Path) -> int:
        while self.process.poll() is None:
            for line in log.read_text().splitlines():
                if line.startswith("{") and json.loads(line)["event"] == "listening":
                    return int(json.loads(line)["url"].rpartition(":")[2])
            time.sleep(0.01)
        raise SystemExit(f"the server did not start: {log.read_text()}")

    def cpu_seconds(self) -> float:
        """CPU seconds that the process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def resident_mb(self) -> float:
        """Memory that is its own or mapped and in use."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(x.split()[1]) for x in lines if x.startswith("VmRSS")) / 1024

    def stop(self) -> None:
        """Stop the server and wait for it to end."""
        self.process.terminate()
        self.process.wait()
        self._log.close()


def requests_for(items: int) -> list[bytes]:
    return [
        post(
            "/recommend",
            json.dumps({"history": [f"b{i}" for i in cluster_history(items, user)]}).encode(),
        )
        for user in range(HISTORIES)
    ]


def measure(items: int, args: argparse.Namespace) -> Row:
    folder = args.work / f"{args.model}-{items}"
    if not folder.exists():
        synthetic_bundle(folder, items, model=args.model)
    index = json.loads((folder / "bundle.json").read_text())["index"]["name"]
    requests = requests_for(items)
    server = Server(folder, args.work / "server.log")
    try:
        uvloop.run(at_once(server.port, requests, seconds=args.seconds / 4))  # warm
        before = server.cpu_seconds()
        most = uvloop.run(at_once(server.port, requests, seconds=args.seconds))
        cpu = server.cpu_seconds() - before
        rate = args.rate if items == args.items[0] else min(args.rate, 0.5 * most.rate())
        steady = uvloop.run(at_rate(server.port, requests, rate=rate, seconds=args.seconds))
        return _row(items, index, server, most, cpu, rate, steady)
    finally:
        server.stop()


def _row(
    items: int, index: str, server: Server, most: Load, cpu: float, rate: float, steady: Load
) -> Row:
    answered = sum(most.statuses.values())
    good = steady.statuses.get(200, 0)
    return Row(
        items=items,
        index=index,
        start_seconds=round(server.start_seconds, 2),
        start_cpu=round(server.start_cpu, 2),
        most_per_second=round(most.rate()),
        cpu_ms=round(1e3 * cpu / answered, 3),
        asked_per_second=round(rate),
        answered_per_second=round(steady.rate()),
        p50=round(steady.quantile(0.5), 1),
        p99=round(steady.quantile(0.99), 1),
        worst=round(steady.quantile(1.0), 1),
        failed=sum(steady.statuses.values()) - good + steady.lost,
        memory=round(server.resident_mb()),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--items", type=int, nargs="+", default=[38_000, 100_000, 300_000, 1_000_000]
    )
    parser.add_argument("--model", default="youtube_dnn", choices=["youtube_dnn", "mind"])
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--work", type=Path, default=OUT, help="scratch folder")
    parser.add_argument("--quick", action="store_true", help="a tiny catalogue for a second")
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    args = parser.parse_args()
    if args.quick:
        args.items, args.rate, args.seconds = [500], 100.0, 1.0
    args.work.mkdir(parents=True, exist_ok=True)
    gc.freeze()  # the client's pauses are not the server's
    machine = describe(("torch", "fastapi", "uvicorn"))
    print(machine)
    print(HEAD)
    rows = []
    for items in args.items:
        row = measure(items, args)
        rows.append(row)
        print(LINE.format(**asdict(row)), f" load {os.getloadavg()[0]:.1f}")
    if args.out:
        document = {"machine": machine, "rows": [asdict(row) for row in rows]}
        args.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
