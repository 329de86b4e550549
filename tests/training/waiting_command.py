"""`crossbatch` that waits at a step: `python waiting_command.py STEP RANK ARGUMENT…`.

The process of this rank prints "waiting" after the step and continues when its stdin is closed; one
that torchrun started again does not wait. So a test can stop a run at a known step, however slow
the machine is. A number written to stdin is the time limit, in seconds, of later messages between
ranks; "die" kills the process.
"""

import os
import signal
import sys
from datetime import timedelta

from torch.distributed import distributed_c10d

from crossbatch.cli import main
from crossbatch.training.run import Session

STEP, RANK = int(sys.argv.pop(1)), sys.argv.pop(1)
on_step = Session.on_step


def on_step_and_wait(self, record):
    on_step(self, record)
    if record.step == STEP:
        print("waiting", flush=True)
        answer = sys.stdin.read()
        if answer == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif answer:
            distributed_c10d._set_pg_timeout(timedelta(seconds=float(answer)))


if os.environ.get("RANK", "0") == RANK and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
    Session.on_step = on_step_and_wait
main()
