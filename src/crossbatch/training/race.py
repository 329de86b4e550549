"""`Race`: which of several recipes is best, by short trainings within some CPU time.

    race = Race(candidates, dataset, measure, first_steps=1000, seconds=120)
    best = race.run()[0]

Successive halving: all candidates train for a few steps and are measured; the better half trains on
until it has twice the steps, and so forth. The last two continue until the time is used up: a tower
that learns fast at first is often not the better one later.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from crossbatch.errors import Interrupted
from crossbatch.kernels.memory import freed_at_once, return_freed_memory
from crossbatch.negatives import NonFiniteLossError
from crossbatch.training.build import build_trainer, draw_batches, pick_device
from crossbatch.training.cooccurrence import FirstVectors, begin_with_vectors
from crossbatch.training.loop import interrupt_flag
from crossbatch.training.threads import using

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from crossbatch.config import Recipe
    from crossbatch.data import Dataset

    # The metric of `train.metric` on validation users, of towers and the recipe they are made by.
    Measure = Callable[[Any, Recipe], float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """A candidate after so many steps.

    Attributes:
        candidate: Its name.
        steps: How many, from its beginning.
        value: The metric; None if it, or the loss, was not finite.
        step_seconds: CPU seconds of a step.
        eval_seconds: CPU seconds of measuring.
        seconds: CPU seconds of all steps since the measurement before, and of measuring.
    """

    candidate: str
    steps: int
    value: float | None
    step_seconds: float
    eval_seconds: float
    seconds: float


@dataclass(slots=True)
class Race:
    """A race of resolved recipes; for the same seed, time decides only when it ends.

    Attributes:
        candidates: Recipes by name, which share `train.max_steps` and `train.accumulate`.
        dataset: What to train on.
        measure: Larger is better.
        first_steps: Steps before the first comparison.
        seconds: CPU seconds in all; the first comparison is made in any case.
        measured: What was measured in earlier sessions, and is not measured again.
        keep: Called after each measurement with all of them.
        clock: CPU seconds; by default those of this process, and wall time on a GPU.
        settled: Whether to end after a round, from the candidates that would continue.
        vectors: Where items begin; candidates begin with the leading dimensions of these.
    """

    candidates: Mapping[str, Recipe]
    dataset: Dataset
    measure: Measure
    first_steps: int
    seconds: float
    measured: list[Measurement] = field(default_factory=list)
    keep: Callable[[list[Measurement]], None] = lambda _: None
    clock: Callable[[], float] | None = None
    settled: Callable[[Sequence[Measurement]], bool] = lambda _: False
    vectors: FirstVectors | None = None
    _contenders: dict[str, Contender] = field(default_factory=dict)
    _interrupted: Callable[[], bool] = lambda: False

    def run(self) -> list[Measurement]:
        """Race to the end: the last round, from the best to the worst.

        Raises:
            Interrupted: If Ctrl-C was pressed; what was measured is kept.
        """
        train = next(iter(self.candidates.values())).train
        steps = -(-self.first_steps // train.accumulate) * train.accumulate
        names, steps = list(self.candidates), min(steps, train.max_steps)
        self.vectors = self.vectors or FirstVectors(self.dataset, train)
        with interrupt_flag() as self._interrupted:
            while True:
                self._round(names, steps)
                ranked = self._ranked(names, steps)
                ahead = [each for each in ranked[: staying(len(ranked))] if each.value is not None]
                further = min(2 * steps, train.max_steps)
                ends = len(ahead) < 2 or further == steps or self.settled(ahead)
                if ends or not self._fits(ahead, further):
                    self._free()
                    return ranked
                names, steps = [each.candidate for each in ahead], further

    def _free(self) -> None:
        """Free what the candidates took, before the winner trains."""
        self._contenders.clear()
        return_freed_memory(collect=True)

    def cpu_seconds(self) -> float:
        """CPU seconds so far, those of earlier sessions included."""
        return sum(each.seconds for each in self.measured)

    def _fits(self, ahead: Sequence[Measurement], steps: int) -> bool:
        needed = sum((steps - e.steps) * e.step_seconds + e.eval_seconds for e in ahead)
        return self.cpu_seconds() + needed <= self.seconds

    def _continues(self, done: Sequence[Measurement], names: Sequence[str]) -> bool:
        """Whether another round fits, if the other `names` cost what those `done` did.

        Where it comes unexpectedly, candidates catch up as after an interruption.
        """
        steps, each = done[0].steps, 1 / len(done)
        rest = (len(names) - len(done)) * each * sum(e.seconds for e in done)
        next_round = sum(steps * e.step_seconds + e.eval_seconds for e in done)
        needed = rest + staying(len(names)) * each * next_round
        return self.cpu_seconds() + needed <= self.seconds

    def _ranked(self, names: Sequence[str], steps: int) -> list[Measurement]:
        """What was measured after `steps` steps, the best first; equals in the order of names."""
        found = {each.candidate: each for each in self.measured if each.steps == steps}
        values = [found[name] for name in names if name in found]
        return sorted(values, key=lambda each: math.inf if each.value is None else -each.value)

    def _round(self, names: Sequence[str], steps: int) -> None:
        """Measure those candidates that have not been measured after `steps` steps."""
        for name in names:
            if name not in {each.candidate for each in self._ranked(names, steps)}:
                self.measured.append(self._measurement(name, steps))
                self.keep(self.measured)
            # Towers and optimisers can be large: those that are out make room for the next ones.
            done = self._ranked(names, steps)
            out = done[staying(len(names)) :] if self._continues(done, names) else done
            if sum(self._contenders.pop(each.candidate, None) is not None for each in out):
                return_freed_memory(collect=True)

    def _measurement(self, name: str, steps: int) -> Measurement:
        """Train a candidate from its measurement before to `steps` steps, and measure it."""
        recipe = self.candidates[name]
        on_cpu = pick_device(recipe.train.device).type == "cpu"
        clock = self.clock or (time.process_time if on_cpu else time.perf_counter)
        contender = self._contenders.pop(name, None)
        contender = contender or Contender(recipe, self.dataset, self.vectors)
        # Not counted: compilation in the first step, and what an earlier session has counted.
        stops = [1, *(each.steps for each in self.measured if each.candidate == name)]
        value, start = math.nan, clock()
        try:
            for stop in stops:  # one by one, for the same rounding as without an interruption
                contender.train(stop, self._interrupted)
            start = clock()
            contender.train(steps, self._interrupted)
            trained = clock()
            with freed_at_once(), using(recipe.train.threads or torch.get_num_threads()):
                value = self.measure(contender.trainer.model, recipe)
            self._contenders[name] = contender
        except NonFiniteLossError:
            trained = clock()
        end = clock()
        return Measurement(
            name,
            steps,
            value if math.isfinite(value) else None,
            (trained - start) / max(steps - stops[-1], 1),
            end - trained,
            end - start,
        )


class Contender:
    """A candidate in training; its random numbers do not depend on when the others train."""

    def __init__(
        self, recipe: Recipe, dataset: Dataset, vectors: FirstVectors | None = None
    ) -> None:
        # Which negatives to use is measured with the winner's towers, when it trains.
        if recipe.sampler["name"] == "auto":
            recipe = replace(recipe, sampler={"name": "in_batch"})
        with torch.random.fork_rng():
            self.trainer = build_trainer(recipe, dataset)
            vectors = vectors or FirstVectors(dataset, recipe.train)
            begin_with_vectors(self.trainer.model, recipe, vectors.leading)
            self._random = _random_state()
        device = pick_device(recipe.train.device)
        batches = draw_batches(recipe.train, dataset, later=self.trainer.mask_later)
        self._batches = (batch.to(device) for batch in batches)
        self._threads = recipe.train.threads or 1

    def train(self, steps: int, interrupted: Callable[[], bool]) -> None:
        """Train until `steps` steps are done, counted from the beginning."""
        with torch.random.fork_rng(), using(self._threads):
            torch.set_rng_state(self._random[0])
            torch.cuda.set_rng_state_all(self._random[1])
            while self.trainer.step < steps:
                self.trainer.train_step(next(self._batches))
                if interrupted():
                    raise Interrupted(
                        "stopped while candidates for the model were compared; continue with the "
                        "same command and --resume"
                    )
            self._random = _random_state()
        self.trainer.optimizer.flush()


def staying(count: int) -> int:
    """How many of `count` candidates continue: the better half, and no fewer than two."""
    return max(2, (count + 1) // 2)


def _random_state() -> tuple[torch.Tensor, list[torch.Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all()
