"""`Journal`: the events of a run, a JSON object a line; and `Monitor`, which measures for it.

The file is readable while the run is training. The monitor writes lines with diagnostics, and
warnings where they predict harm.
"""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from crossbatch.negatives import CrossBatchSampler, diagnose, diagnose_bank

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from crossbatch.training.step import StepRecord, Trainer

Listener = Callable[[str, int, dict[str, Any]], None]  # event, step, fields


class Journal:
    """Events of a run in `journal.jsonl`, append-only.

    Args:
        path: The file, made if absent; None for a process that writes nothing.
        length: Bytes to keep: a resumed run drops what was written after its checkpoint, because
            those steps happen again. Of a shorter file the complete lines are kept.
        listeners: Called with every event after it was written.

    Attributes:
        crc32: Checksum of the file's content.
    """

    def __init__(
        self, path: Path | None, length: int | None = None, listeners: tuple[Listener, ...] = ()
    ) -> None:
        self._listeners = listeners
        self._file = None if path is None else path.open("ab")
        kept = b"" if path is None else path.read_bytes()
        if self._file is not None and length is not None:
            kept = kept[:length]
            if len(kept) < length:
                kept = kept[: kept.rfind(b"\n") + 1]
            self._file.truncate(len(kept))
            self._file.seek(0, os.SEEK_END)
        self.crc32 = zlib.crc32(kept)

    def write(self, event: str, step: int, **fields: Any) -> None:
        """Append one event and hand it to the operating system and to the listeners."""
        if self._file is not None:
            document = {"event": event, "step": step} | without_nan(fields)
            payload = json.dumps(document, allow_nan=False).encode() + b"\n"
            self._file.write(payload)
            self._file.flush()
            self.crc32 = zlib.crc32(payload, self.crc32)
        for listener in self._listeners:
            listener(event, step, fields)

    def length(self) -> int:
        """Bytes so far, on disk for certain."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def without_nan(value: Any) -> Any:
    """The value with NaN and infinity, which are not JSON, as None."""
    if isinstance(value, dict):
        return {key: without_nan(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(frozen=True, slots=True)
class Alarm:
    """A diagnostic beyond a threshold, and what to do about it."""

    key: str
    above: bool
    threshold: float
    message: str
    harmful: bool = False  # whether a guarded sampler loses its bank
    instead_of: str = ""  # key of an alarm that would only say the same again

    def triggered(self, diagnostics: dict[str, float]) -> bool:
        """Whether the value is on the wrong side; NaN never is."""
        value = diagnostics.get(self.key, float("nan"))
        return value > self.threshold if self.above else value < self.threshold


COLLAPSE = (
    "the item vectors are collapsing into one direction: set sampler.item_gradient to "
    '"balanced", or sampler.capacity to 0'
)
ALARMS = (
    Alarm("mean_direction_share", True, 0.9, COLLAPSE, harmful=True),
    # Measured with 3 models on books, movies and the demo: a balanced bank stays below 1.3, a
    # collapsing one jumps to 3.5 within 50 steps.
    Alarm(
        "mean_direction_growth",
        True,
        2.5,
        COLLAPSE,
        harmful=True,
        instead_of="mean_direction_share",
    ),
    Alarm(
        "bank_staleness",
        True,
        0.5,
        "the bank's vectors are far from what the item tower gives now: lengthen "
        "sampler.warmup_steps or lower sampler.capacity",
    ),
    Alarm(
        "masked_share",
        True,
        0.1,
        "over a tenth of the negatives are copies of the row's own positive: the bank is large "
        "for this catalogue; lower sampler.capacity, or use the uniform sampler",
    ),
    Alarm(
        "gradient_ratio",
        False,
        0.02,
        "the item tower gets hardly any gradient: set sampler.item_gradient to "
        '"balanced", or lower sampler.capacity',
        harmful=True,
    ),
)

# What growth is measured from, at least: 128 random directions have a share of 0.09.
SMALL_SHARE = 0.2


@dataclass(slots=True)
class Monitor:
    """Averages losses, times training without its evaluations, measures every `every` steps."""

    trainer: Trainer
    every: int
    write: Callable[..., None]  # called with event name, step and fields
    seconds: float = 0.0  # training time, earlier sessions included after `load_state`
    cpu_seconds: float = 0.0  # does not depend on other load of the machine
    warned: set[str] = field(default_factory=set)  # keys of the alarms that were triggered
    share_before_bank: float | None = None  # the last one measured without cached columns
    _losses: list[Tensor | float] = field(default_factory=list)  # since the last journal line
    _columns: int = 0
    _mark: float = field(default_factory=time.perf_counter)
    _cpu_mark: float = field(default_factory=time.process_time)
    _reported: float = 0.0  # `seconds` at the last journal line

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold for the next journal lines to be those of an unbroken run."""
        return {
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "reported": self._reported,
            "losses": [float(loss) for loss in self._losses],
            "columns": self._columns,
            "warned": sorted(self.warned),
            "share_before_bank": self.share_before_bank,
        }

    def load_state(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state` returned; without a checkpoint everything starts from zero."""
        self.seconds = saved.get("seconds", 0.0)
        self.cpu_seconds = saved.get("cpu_seconds", 0.0)
        self._reported = saved.get("reported", self.seconds)
        self._losses, self._columns = list(saved.get("losses", [])), saved.get("columns", 0)
        self.warned = set(saved.get("warned", []))
        self.share_before_bank = saved.get("share_before_bank")

    def pause(self) -> None:
        """Stop the clock of training."""
        self.seconds += time.perf_counter() - self._mark
        self.cpu_seconds += time.process_time() - self._cpu_mark

    def resume(self) -> None:
        """Start the clock again."""
        self._mark, self._cpu_mark = time.perf_counter(), time.process_time()

    def __call__(self, record: StepRecord) -> None:
        """Record a step; every few steps, write a journal line."""
        self._losses.append(record.loss)
        self._columns += len(record.negatives) * len(record.positives)
        if record.step % self.every == 0:
            self.pause()
            self._report(record)
            self.resume()

    def _report(self, record: StepRecord) -> None:
        diagnostics = self.measure(record)
        elapsed = max(self.seconds - self._reported, 1e-9)
        self.write(
            "train",
            record.step,
            seconds=round(self.seconds, 4),
            loss=sum(float(loss) for loss in self._losses) / len(self._losses),
            steps_per_second=len(self._losses) / elapsed,
            negatives_per_second=self._columns / elapsed,
            lr=record.lr,
            diagnostics=diagnostics,
        )
        self._losses, self._columns, self._reported = [], 0, self.seconds
        for alarm in ALARMS:
            if alarm.key not in self.warned and alarm.triggered(diagnostics):
                self.warned |= {alarm.key, alarm.instead_of} - {""}
                remedy = self._switched_off(alarm) or alarm.message
                message = f"{alarm.key} is {diagnostics[alarm.key]:.3g}: {remedy}"
                self.write("warning", record.step, message=message)

    def _switched_off(self, alarm: Alarm) -> str | None:
        """Switch off the bank of a guarded sampler if the alarm means harm; the remedy then."""
        sampler = self.trainer.sampler
        if not (isinstance(sampler, CrossBatchSampler) and sampler.guard and alarm.harmful):
            return None
        sampler.switch_off()
        return "the bank does harm and was switched off; training continues with in-batch negatives"

    def measure(self, record: StepRecord) -> dict[str, float]:
        """The diagnostics of one step."""
        trainer = self.trainer
        banked = trainer.sampler if isinstance(trainer.sampler, CrossBatchSampler) else None
        diagnostics = diagnose(
            trainer.whole(record.users),
            record.positives,
            record.negatives,
            temperature=float(trainer.log_temperature.detach().exp()),
            mask=trainer.mask,
            item_gradient=banked.item_gradient if banked else "paper",
        )
        if banked and len(banked.bank):
            diagnostics |= diagnose_bank(banked.bank, record.positives, trainer.model.items)
        if banked:
            diagnostics |= self._growth(diagnostics["mean_direction_share"], record)
        return diagnostics

    def _growth(self, share: float, record: StepRecord) -> dict[str, float]:
        """How far the items' mean direction has grown since the bank is read."""
        if not any(part.cached and len(part) for part in record.negatives.parts):
            self.share_before_bank = share
        if self.share_before_bank is None:  # read from the first step on
            return {}
        return {"mean_direction_growth": share / max(self.share_before_bank, SMALL_SHARE)}
