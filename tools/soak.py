"""Serve a bundle for a while under good, bad and broken requests and swaps of the bundle.

    python tools/soak.py BUNDLE --minutes 30

It counts answers that are not as they must be, and follows memory and open files of the server.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from crossbatch.files import put_in_place
from crossbatch.serving import open_bundle

PAUSE = 0.02  # seconds between two requests
SWAP_EVERY = 1_500  # requests
JSON = {"Content-Type": "application/json"}


def ask(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of the answer to a request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET" if body is None else "POST", path, body, JSON)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def recommend(port: int, items: list[str], rng: random.Random) -> bool:
    """Ask for a list; whether it is valid: distinct items, none of the history, at most k."""
    history, k = rng.sample(items, min(len(items), rng.randint(0, 30))), rng.randint(1, 50)
    status, body = ask(port, "/recommend", json.dumps({"history": history, "k": k}).encode())
    ids = [item["id"] for item in json.loads(body)["items"]] if status == 200 else []
    return bool(ids) and len(set(ids)) == len(ids) <= k and not set(ids) & set(history)


def broken(port: int, content: bytes) -> None:
    """Send bytes and leave without waiting for an answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(content)


def one_request(port: int, items: list[str], rng: random.Random) -> tuple[str, bool]:
    """Send one request of a random kind: its kind, and whether the answer was as it must be."""
    noise, kind = rng.randbytes(rng.randint(1, 300)), rng.random()
    if kind < 0.75:
        return "recommend", recommend(port, items, rng)
    if kind < 0.85:
        return "similar", ask(port, f"/similar?id={rng.choice(items)}&k=5")[0] == 200
    if kind < 0.93:
        return "bad body", 400 <= ask(port, "/recommend", noise)[0] < 500
    if kind < 0.97:
        broken(port, noise)
        return "noise", True
    broken(port, b"POST /recommend HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{")
    return "cut short", True


def state(process: int) -> str:
    """Memory and open files of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    files = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return f"{memory / 1024:,.0f} MB, {files} open files"


def soak(bundle: Path, minutes: float, place: Path) -> int:
    """Serve a copy of the bundle, and return how many answers were wrong."""
    live, log, rng = place / "live", place / "log", random.Random(0)  # noqa: S311
    shutil.copytree(bundle, live)
    opened = open_bundle(bundle)
    items = opened.item_keys(range(1, min(1_000, opened.num_items) + 1))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "crossbatch", "serve", str(live), "--port", str(port)]
    counted: Counter[str] = Counter()
    with log.open("w") as lines:
        server = subprocess.Popen(command, stdout=lines, stderr=lines)  # noqa: S603
        try:
            while '"listening"' not in log.read_text():
                if server.poll() is not None:
                    raise SystemExit(log.read_text())
                time.sleep(0.1)
            began = report = time.monotonic()
            while (now := time.monotonic()) < began + 60 * minutes:
                try:
                    kind, good = one_request(port, items, rng)
                except (OSError, http.client.HTTPException) as error:
                    kind, good = type(error).__name__, False
                counted.update([kind, *([] if good else ["wrong"])])
                if counted.total() % SWAP_EVERY == 0:
                    shutil.copytree(bundle, place / "next")
                    put_in_place(place / "next", live, replace=True)
                    shutil.rmtree(place / "next", ignore_errors=True)
                    server.send_signal(signal.SIGHUP)
                    counted["swaps"] += 1
                if now >= report:
                    report += 60
                    print(f"{(now - began) / 60:.0f} min: {dict(counted)}; {state(server.pid)}")
                time.sleep(PAUSE)
            print(f"at the end: {dict(counted)}; {state(server.pid)}")
        finally:
            server.terminate()
            server.wait()
    print(f"faults in the log: {log.read_text().count('Traceback')}")
    return counted["wrong"]


def main() -> None:
    """Read the arguments; exit code 1 if an answer was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        sys.exit(int(soak(given.bundle, given.minutes, Path(place)) > 0))


if __name__ == "__main__":
    main()
