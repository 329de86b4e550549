"""`Monitor`: turns steps into journal lines, and numbers that predict harm into plain warnings."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crossbatch.negatives import CrossBatchSampler, diagnose, diagnose_bank

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from crossbatch.training.trainer import StepRecord, Trainer


@dataclass(frozen=True, slots=True)
class Alarm:
    """A diagnostic beyond a threshold, and what to do about it."""

    key: str
    above: bool
    threshold: float
    message: str
    harmful: bool = False  # whether a guarded sampler loses its bank

    def rings(self, diagnostics: dict[str, float]) -> bool:
        """Whether the value is on the wrong side; NaN never is."""
        value = diagnostics.get(self.key, float("nan"))
        return value > self.threshold if self.above else value < self.threshold


ALARMS = (
    Alarm(
        "mean_direction_share",
        True,
        0.9,
        "the item vectors are collapsing into one direction: set sampler.item_gradient to "
        '"balanced", or sampler.capacity to 0',
        harmful=True,
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


@dataclass(slots=True)
class Monitor:
    """Averages losses, times training without its evaluations, measures every `every` steps.

    Attributes:
        trainer: Whose steps are watched.
        every: Steps between journal lines.
        write: Called with event name, step and fields.
        seconds: Training time so far, earlier sittings included as told.
        cpu_seconds: Of it, what this process computed: a busy machine stretches only the other.
    """

    trainer: Trainer
    every: int
    write: Callable[..., None]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    warned: set[str] = field(default_factory=set)
    _losses: list[Tensor] = field(default_factory=list)
    _columns: int = 0
    _mark: float = field(default_factory=time.perf_counter)
    _cpu_mark: float = field(default_factory=time.process_time)
    _reported: float = field(init=False)  # `seconds` at the last journal line

    def __post_init__(self) -> None:
        self._reported = self.seconds

    def pause(self) -> None:
        """Stop the clock: what comes is not training."""
        self.seconds += time.perf_counter() - self._mark
        self.cpu_seconds += time.process_time() - self._cpu_mark

    def go_on(self) -> None:
        """Start the clock again."""
        self._mark, self._cpu_mark = time.perf_counter(), time.process_time()

    def __call__(self, record: StepRecord) -> None:
        """Take note of a step."""
        self._losses.append(record.loss)
        self._columns += len(record.negatives) * len(record.positives)
        if record.step % self.every == 0:
            self.pause()
            self._report(record, self.seconds - self._reported)
            self._reported = self.seconds
            self.go_on()

    def _report(self, record: StepRecord, elapsed: float) -> None:
        diagnostics = self.measure(record)
        elapsed = max(elapsed, 1e-9)
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
        self._losses, self._columns = [], 0
        for alarm in ALARMS:
            if alarm.key not in self.warned and alarm.rings(diagnostics):
                self.warned.add(alarm.key)
                remedy = self._switched_off(alarm) or alarm.message
                message = f"{alarm.key} is {diagnostics[alarm.key]:.3g}: {remedy}"
                self.write("warning", record.step, message=message)

    def _switched_off(self, alarm: Alarm) -> str | None:
        """Take the bank from a guarded sampler if the alarm says that it does harm."""
        sampler = self.trainer.sampler
        if not (isinstance(sampler, CrossBatchSampler) and sampler.guard and alarm.harmful):
            return None
        sampler.switch_off()
        return (
            "the bank does harm here and was switched off; training goes on with in-batch negatives"
        )

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
        return diagnostics
