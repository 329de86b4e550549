"""How fast `crossbatch serve` starts and answers: a bounded load test over loopback.

    python benchmarks/serving.py                              # 38,000 items, then to a million
    python benchmarks/serving.py --items 38000 --half --cores 1 0    # one core for each side
    python benchmarks/serving.py --soak 1000000               # memory over a million requests
    python benchmarks/serving.py --workers 2 --items 38000    # several processes, and one killed

Server and client are two processes; `--cores 1 0` gives each its own core, otherwise they share
all. For each size of the catalogue the client first keeps 64 connections busy (the most that the
server can do), then sends requests on a fixed schedule, at half of that unless `--rate` says
otherwise, and counts each latency from the moment at which its request was due. A request is one
history of 20 items and asks for 20 recommendations with titles.

Wall-clock numbers are only meaningful on an otherwise idle machine; the load average is printed.
The server's CPU time per request depends less on other processes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from http_load import Load, at_once, at_rate, post
from measure.machine import describe
from soak import ITEMS, soak, soak_bundle
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
    """`crossbatch serve` as a process, with its workers if it has any."""

    def __init__(self, bundle: Path, log: Path, *options: str, core: int | None = None) -> None:
        self._log = log.open("w+")
        started = time.perf_counter()
        command = [sys.executable, "-m", "crossbatch", "serve", str(bundle), "--port", "0"]
        if core is not None:
            command = ["taskset", "--cpu-list", str(core), *command]
        self.process = subprocess.Popen(
            [*command, *options], stdout=subprocess.DEVNULL, stderr=self._log
        )
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

    def workers(self) -> list[int]:
        """Process ids of those that answer."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        found = [int(child) for child in children if b"spawn_main" in _command(int(child))]
        return found or [pid]

    def cpu_seconds(self) -> float:
        """CPU seconds that those that answer have used so far."""
        ticks = 0
        for pid in self.workers():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / CLOCK_TICKS

    def memory_mb(self, pid: int | None = None) -> dict[str, float]:
        """Memory of one that answers: all, its own, and what others have mapped as well."""
        lines = Path(f"/proc/{pid or self.workers()[0]}/smaps_rollup").read_text().splitlines()[1:]
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        private, shared = (
            kib[f"{kind}_Clean"] + kib[f"{kind}_Dirty"] for kind in ("Private", "Shared")
        )
        return {"all": kib["Rss"] / 1024, "private": private / 1024, "shared": shared / 1024}

    def resident_mb(self) -> float:
        """Memory that is its own or mapped and in use."""
        return self.memory_mb()["all"]

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


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def measure(items: int, args: argparse.Namespace) -> Row:
    folder = args.work / f"{args.model}-{items}"
    if not folder.exists():
        synthetic_bundle(folder, items, model=args.model)
    index = json.loads((folder / "bundle.json").read_text())["index"]["name"]
    requests = requests_for(items)
    server = Server(folder, args.work / "server.log", core=args.cores and args.cores[0])
    try:
        uvloop.run(at_once(server.port, requests, seconds=args.seconds / 4))  # warm
        before = server.cpu_seconds()
        most = uvloop.run(at_once(server.port, requests, seconds=args.seconds))
        cpu = server.cpu_seconds() - before
        rate = args.rate or 0.5 * most.rate()
        steady = uvloop.run(at_rate(server.port, requests, rate=rate, seconds=args.seconds))
        return _row(items, index, server, most, cpu, rate, steady)
    finally:
        server.stop()


def measure_workers(items: int, args: argparse.Namespace) -> None:
    """Throughput and memory of 1 … `--workers` processes; then one is killed under load."""
    folder = args.work / f"{args.model}-{items}"
    if not folder.exists():
        synthetic_bundle(folder, items, model=args.model)
    requests = requests_for(items)
    print(f"{items:,} items\nworkers  most/s  CPU ms  each worker: MB, private, shared")
    for workers in range(1, args.workers + 1):
        server = Server(folder, args.work / "server.log", "--workers", str(workers))
        try:
            uvloop.run(at_once(server.port, requests, seconds=args.seconds / 2))  # warm
            before = server.cpu_seconds()
            most = uvloop.run(at_once(server.port, requests, seconds=args.seconds))
            cpu = 1e3 * (server.cpu_seconds() - before) / sum(most.statuses.values())
            memory = [server.memory_mb(pid) for pid in server.workers()]
            each = "; ".join(", ".join(f"{mb:.0f}" for mb in one.values()) for one in memory)
            print(f"{workers:>7} {most.rate():>7.0f} {cpu:>7.3f}  {each}", flush=True)
            if workers > 1:
                uvloop.run(kill_one(server, requests, rate=most.rate() / 3, seconds=args.seconds))
        finally:
            server.stop()


async def kill_one(server: Server, requests: list[bytes], *, rate: float, seconds: float) -> None:
    """Kill a worker with SIGKILL amid requests that come at a fixed rate, and say what was lost."""
    victim = server.workers()[0]
    loop, connections = asyncio.get_running_loop(), 16
    loop.call_later(seconds / 3, os.kill, victim, signal.SIGKILL)
    load = await at_rate(
        server.port, requests, rate=rate, seconds=seconds, connections=connections, reconnect=True
    )
    print(
        f"one killed at {rate:.0f} requests/s over {connections} connections: statuses "
        f"{load.statuses}, lost {load.lost}, of {int(rate * seconds)}; p99 "
        f"{load.quantile(0.99):.0f} ms; "
        f"replaced: {victim not in server.workers() and len(server.workers()) > 1}"
    )


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


def run_soak(args: argparse.Namespace) -> None:
    items = 500 if args.quick else ITEMS
    folder = args.work / f"soak-{items}"
    if not folder.exists():
        soak_bundle(folder, items)
    core = args.cores and args.cores[0]
    server = Server(folder, args.work / "server.log", core=core)
    try:
        document = soak(server.port, server.resident_mb, args.soak, items)
    finally:
        server.stop()
    if args.out:
        args.out.write_text(json.dumps({"machine": describe(), **document}, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--items", type=int, nargs="+", default=[38_000, 100_000, 300_000, 1_000_000]
    )
    parser.add_argument("--model", default="youtube_dnn", choices=["youtube_dnn", "mind"])
    parser.add_argument("--rate", type=float, help="requests a second; else half of the most")
    parser.add_argument("--cores", type=int, nargs=2, help="of the server and of the client")
    parser.add_argument("--workers", type=int, help="compare 1 to so many processes, and kill one")
    parser.add_argument("--soak", type=int, help="so many varied requests; watch the memory")
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
    if args.cores:
        os.sched_setaffinity(0, args.cores[1:])
    if args.soak:
        run_soak(args)
        return
    if args.workers:
        for items in args.items:
            measure_workers(items, args)
        return
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
