"""A worker of an interleaved run: builds rows, steps on request, reports CPU time.

    {"prepare": "in-batch", "warmup": 400, "seconds": 5}   ->   {"ready": "in-batch"}
    {"steps": "in-batch", "count": 64, "untimed": 32}      ->   {"cpu": 0.11, "wall": 0.11}

One JSON document a line on standard input and output. Runs in any environment that has Python.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

Step = Callable[[], object]


def serve(rows: Mapping[str, Callable[[], Step]], packages: tuple[str, ...]) -> None:
    """Answer until standard input ends.

    Args:
        rows: What can be timed by name; calling the value builds it and returns its step.
        packages: Whose versions to report.
    """
    # Output of libraries goes to standard error; standard output is for the answers only.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    steps: dict[str, Step] = {}

    def answer(**fields: object) -> None:
        answers.write(json.dumps(fields) + "\n")

    answer(rows=list(rows), versions={name: version(name) for name in packages})
    for line in sys.stdin:
        request = json.loads(line)
        if name := request.get("prepare"):
            steps[name] = rows[name]()
            warm_up(steps[name], request["warmup"], request["seconds"])
            answer(ready=name)
        else:
            step = steps[request["steps"]]
            repeat(step, request["untimed"])
            cpu, wall = time.process_time(), time.perf_counter()
            repeat(step, request["count"])
            answer(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall)


def warm_up(step: Step, count: int, seconds: float) -> None:
    """Take two steps, then more until there were `count` of them or the seconds have passed."""
    end = time.perf_counter() + seconds
    for number in range(count):
        if number >= 2 and time.perf_counter() > end:
            return
        step()


def repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step()
