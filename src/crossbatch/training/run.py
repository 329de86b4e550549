"""The life of a run: build or restore it, train, measure the best model, write the result.

`crossbatch.fit` calls `train_run`; what a run leaves on disk is in `run_folder`. Metrics come from
an `Evaluator` that is passed in, so that training depends on no evaluation code.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from crossbatch.errors import DataError, DivergedError, Interrupted
from crossbatch.files import flat, sealed
from crossbatch.kernels.memory import freed_at_once, return_freed_memory
from crossbatch.negatives import CrossBatchSampler, NonFiniteLossError
from crossbatch.training.auto_sampler import SamplerChoice, choose_sampler, is_table
from crossbatch.training.build import build_trainer, draw_batches, pick_device, resolve
from crossbatch.training.cooccurrence import FirstVectors, begin_with_vectors
from crossbatch.training.distributed.start import check_alike, together
from crossbatch.training.distributed.trainer import RankTrainer
from crossbatch.training.journal import Journal, Monitor, without_nan
from crossbatch.training.loop import EarlyStopping, interrupt_flag, train_loop
from crossbatch.training.progress import Progress, Tracker
from crossbatch.training.run_folder import OWN_MODEL, RACE, START, RunFolder, sealed_entry
from crossbatch.training.threads import measured_threads, using

if TYPE_CHECKING:
    from pathlib import Path

    from crossbatch.config import Recipe
    from crossbatch.data import Batch, Dataset
    from crossbatch.models import TwoTower
    from crossbatch.training.auto_model import ModelChoice
    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.step import StepRecord, Trainer
    from crossbatch.training.warm_start import WarmStart


class Metrics(Protocol):
    """Metrics of one evaluation; `crossbatch.evaluation.Evaluation` has them."""

    @property
    def num_users(self) -> int:
        """Users that were measured."""

    @property
    def unseen(self) -> Metrics | None:
        """The same with everything left out that a user has had."""

    def means(self) -> dict[str, float]:
        """Mean of each metric over the users."""


class Evaluator(Protocol):
    """Measures a run's towers; `crossbatch.evaluation.runs.RunEvaluator` is one."""

    @property
    def exclude_seen(self) -> bool:
        """Whether `unseen` metrics choose the best model."""

    def decision(self) -> dict[str, Any]:
        """The entry "metric" of `result.json`: what chooses the best model."""

    def validate(self, model: Any, max_users: int | None = None) -> Metrics:
        """Metrics on the validation users, or on the first `max_users` of them."""

    def test(self, model: Any, folder: Path | None) -> dict[str, Any]:
        """The entries of `result.json` on the test users; each user's metrics go to `folder`."""

    def write_examples(self, model: Any, folder: Path) -> None:
        """Write `examples.json`: recommendations for a few users, to look at."""


# Called with trainer and step after every step, to measure without changing what is learned; its
# result becomes a journal line "probe". A probe whose measurements span several steps has an
# attribute `measuring`, true during one: a run stopped then resumes from the checkpoint before it.
Probe = Callable[["Trainer", int], "Mapping[str, Any] | None"]
SHARED_WEIGHTS = (
    'sampler.item_gradient is "deferred", and the items share weights (content, layers or an '
    "encoder): gradients that come late did harm to such towers wherever we measured it; use "
    '"balanced", or in-batch negatives'
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to train and how to report it: the arguments of `crossbatch.fit`, resolved."""

    dataset: Dataset
    recipe: Recipe
    evaluator: Evaluator
    model: torch.nn.Module | None = None
    progress: Progress = field(default_factory=Progress)
    trackers: tuple[Tracker, ...] = ()
    probe: Probe | None = None
    test: bool = True
    ranks: Ranks | None = None
    race: ModelChoice | None = None  # what an "auto" model stands for; the recipe has it
    start: WarmStart | None = None  # the earlier model to start from; the recipe fits it
    vectors: FirstVectors | None = None  # where items begin, if a race has counted it

    @property
    def own_model(self) -> str | None:
        """Class name of the caller's own towers, where the recipe has no import path of them."""
        rebuilt = self.model is None or self.recipe.model.model
        return None if rebuilt else type(self.model).__name__

    def config(self, choice: SamplerChoice | None = None) -> dict[str, Any]:
        """The content of `config.json`."""
        chosen = {"advice": sealed(asdict(choice))} if choice else {}
        chosen |= {RACE: sealed(asdict(self.race))} if self.race else {}
        chosen |= {START: sealed(self.start.record())} if self.start else {}
        about = {
            "dataset": {
                "path": self.dataset.place,
                "checksum": self.dataset.manifest["checksum"],
            },
            OWN_MODEL: self.own_model,
            "version": version("crossbatch"),
            "environment": environment(),
        }
        return self.recipe.to_dict() | chosen | about


def train_run(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """Train in a folder from its newest checkpoint to the result, and return `result.json`.

    Raises:
        Interrupted: If Ctrl-C ended training; a checkpoint was saved.
        DivergedError: If the loss was not finite; the last good checkpoint stays.
    """
    if plan.ranks is not None:
        check_alike(plan.ranks, _shared_facts(plan, folder))
    finished = folder.result()
    if finished is not None:
        folder.check_config(plan.config())
        return finished
    session = start_session(plan, folder)
    try:
        with using(session.threads):
            session.train()
            with freed_at_once(), using(session.eval_threads):
                return session.finish()
    finally:
        session.journal.close()


def start_session(plan: Plan, folder: RunFolder) -> Session:
    """Build the trainer or restore it from the newest checkpoint, and open the journal."""
    train, stopping = plan.recipe.train, EarlyStopping(plan.recipe.train.patience)
    trainer, choice, saved = together(plan.ranks, lambda: _restored(plan, folder, stopping))
    # Sums depend on how they are split: a resumed run uses the threads that it began with.
    threads = train.threads or saved.get("threads")
    if not threads and plan.ranks is None:  # ranks share the cores as their launcher decided
        threads = measured_threads(trainer, next(next_batches(plan, trainer)))
    threads = threads or torch.get_num_threads()
    eval_threads = train.threads or saved.get("eval_threads") or torch.get_num_threads()
    folder.write_config(plan.config(choice))
    path = folder.path / "journal.jsonl"
    listeners = (plan.progress.event, *(tracker.event for tracker in plan.trackers))
    journal = Journal(path if folder.writes else None, saved.get("journal", 0), listeners)
    if saved.get("journal_crc32") not in (None, journal.crc32):
        plan.progress.say(
            f"{path} was damaged after the checkpoint: training continues exactly, curves that are "
            "drawn from it may have gaps"
        )
    monitor = Monitor(trainer, train.log_every, journal.write)
    monitor.load_state(saved)
    seconds = saved.get("eval_seconds", 0.0)
    return Session(
        plan, folder, trainer, stopping, journal, monitor, choice, threads, eval_threads, seconds
    )


def _restored(
    plan: Plan, folder: RunFolder, stopping: EarlyStopping
) -> tuple[Trainer, SamplerChoice | None, dict[str, Any]]:
    """The trainer, the choice of an `"auto"` sampler, and the document of the checkpoint."""
    plan.dataset.verify(shards=False)  # takes a second, training takes hours
    folder.check_config(plan.config())
    recipe, choice = plan.recipe, None
    if recipe.sampler["name"] == "auto":
        choice = _chosen_once(plan, folder)
        recipe = resolve(choice.applied_to(recipe), plan.dataset)
    steps_before = plan.start.steps if plan.start else 0
    trainer = build_trainer(recipe, plan.dataset, plan.model, plan.ranks, steps_before)
    saved = folder.load_checkpoint(trainer, stopping, plan.progress.say) or {}
    if plan.start and not saved:  # a checkpoint has weights of its own
        towers = cast("TwoTower", trainer.model)
        plan.progress.say(plan.start.load_into(towers, plan.dataset, trainer.optimizer))
    elif not saved and plan.model is None:
        vectors = plan.vectors or FirstVectors(plan.dataset, recipe.train)
        begin_with_vectors(trainer.model, recipe, vectors.of, plan.progress.say)
        vectors.forget()
    if saved and saved.get(START) != (plan.start.checksum if plan.start else None):
        raise _other_run(folder, "began from other weights")
    if choice and saved.get("sampler") not in (None, choice.sampler):
        raise _other_run(folder, f"chose other negatives, {saved['sampler']}")
    if plan.race and saved.get("model") not in (None, plan.race.settings):
        raise _other_run(folder, f"chose another model, {saved['model']}")
    return trainer, choice, saved


def _other_run(folder: RunFolder, how: str) -> DataError:
    return DataError(
        f"{folder.path / 'config.json'} is missing or was changed: its run {how}; restore it, or "
        "start anew elsewhere"
    )


def _chosen_once(plan: Plan, folder: RunFolder) -> SamplerChoice:
    """What an `"auto"` sampler stands for, chosen by the first session of a run."""
    names = [field.name for field in fields(SamplerChoice)]
    chosen = "which negatives the run chose"
    recorded = sealed_entry(folder.path, folder.config(), "advice", names, chosen)
    if recorded is not None:
        choice = SamplerChoice(**recorded)
    else:
        alone = plan.ranks is None
        choice = choose_sampler(plan.recipe, plan.dataset, plan.model, alone=alone)
        return_freed_memory(collect=True)
    if plan.ranks is not None:  # each rank has measured for itself
        choice = plan.ranks.collect_objects(choice)[0]
    plan.progress.say(str(choice))
    return choice


def next_batches(plan: Plan, trainer: Trainer) -> Iterator[Batch]:
    """The batches that the trainer has not had yet, on its device."""
    train = plan.recipe.train
    device = pick_device(train.device)
    batches = draw_batches(train, plan.dataset, start=trainer.step, later=trainer.mask_later)
    return batches if device.type == "cpu" else (batch.to(device) for batch in batches)


def _shared_facts(plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """What all ranks must have alike."""
    own = ("environment", "dataset.path", f"{START}.path", f"{START}.seal")  # it covers the path
    facts = {key: value for key, value in flat(plan.config()).items() if not key.startswith(own)}
    return facts | {
        "the newest checkpoint in the run folder": folder.newest_checkpoint(),
        "the result in the run folder": folder.result(),
    }


def environment() -> dict[str, Any]:
    """Versions, machine and threads: what numbers may depend on besides code and data."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


@dataclass(slots=True)
class Session:
    """One session of a run, from its start or a checkpoint; the callbacks of its loop."""

    plan: Plan
    folder: RunFolder
    trainer: Trainer
    stopping: EarlyStopping
    journal: Journal
    monitor: Monitor
    choice: SamplerChoice | None  # what an "auto" sampler stands for
    threads: int  # CPU threads of steps
    eval_threads: int
    eval_seconds: float  # earlier sessions included
    interrupted: Callable[[], bool] = lambda: False  # whether Ctrl-C was pressed
    _measured: Metrics | None = None  # by the last evaluation

    def train(self) -> None:
        """Train until early stopping, the last step or Ctrl-C."""
        trainer, progress = self.trainer, self.plan.progress
        if trainer.step == 0:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            self.journal.write("start", 0, time=now, environment=environment())
            if self.plan.recipe.sampler.get("item_gradient") == "deferred" and not is_table(
                trainer.model
            ):
                self.journal.write("warning", 0, message=SHARED_WEIGHTS)
        else:
            self.journal.write("resume", trainer.step)
        progress.start(trainer.step, self.plan.recipe.train.max_steps)
        reason = self._loop()
        self.monitor.pause()
        progress.stop()
        if reason == "interrupted":
            # Within a measurement of the probe the checkpoint before it stays the newest.
            if not getattr(self.plan.probe, "measuring", False):
                self.save()
            raise Interrupted(
                f"stopped at step {trainer.step} and saved; continue with the same command and "
                f"--resume"
            )
        self.journal.write("stop", trainer.step, reason=reason)

    def _loop(self) -> str:
        train, trainer = self.plan.recipe.train, self.trainer
        counting_from = 0
        if train.patience_from_warmup and isinstance(trainer.sampler, CrossBatchSampler):
            counting_from = trainer.sampler.warmup_steps
        batches = next_batches(self.plan, trainer)
        with interrupt_flag(launched=self.plan.ranks is not None) as self.interrupted:
            if isinstance(trainer, RankTrainer):
                self.interrupted = trainer.agree_to_stop(self.interrupted)
            try:
                return train_loop(trainer, batches, self, self.stopping, train, counting_from)
            except NonFiniteLossError as error:
                self.journal.write("stop", trainer.step, reason="nan")
                raise DivergedError(
                    f"batch {trainer.step} of seed {train.seed}: {error}; the last good checkpoint "
                    f"is in {self.folder.checkpoints}"
                ) from None

    def on_step(self, record: StepRecord) -> None:
        """Measure a step, run the probe, show progress."""
        self.monitor(record)
        if self.plan.probe is not None:
            self.monitor.pause()
            found = self.plan.probe(self.trainer, record.step)
            if found:
                self.journal.write("probe", record.step, **found)
            self.monitor.resume()
        self.plan.progress.step(record.step, record.loss)

    def evaluate(self) -> Mapping[str, float]:
        """The validation metrics that decide; the clock of training is stopped."""
        self.monitor.pause()
        began = time.perf_counter()
        with freed_at_once(), using(self.eval_threads):
            max_users = self.plan.recipe.train.eval_users or None
            metrics = self.plan.evaluator.validate(self.trainer.model, max_users)
        self.eval_seconds += time.perf_counter() - began
        self._measured = metrics
        unseen = metrics.unseen if self.plan.evaluator.exclude_seen else None
        return (unseen or metrics).means()

    def on_eval(self, metrics: Mapping[str, float], best: bool) -> None:
        """Write what an evaluation found, keep the best model, save a checkpoint."""
        seconds = round(self.monitor.seconds + self.eval_seconds, 4)
        measured = self._measured
        assert measured is not None
        about = {
            "seconds": seconds,
            "cpu_seconds": round(self.monitor.cpu_seconds, 4),  # of training alone
            "split": "valid",
            "users": measured.num_users,
            "value": metrics[self.plan.recipe.train.metric],
            "metrics": measured.means(),
        }
        if measured.unseen is not None:
            about["unseen"] = measured.unseen.means()
        self.journal.write("eval", self.trainer.step, **about)
        if best:
            recipe = self.plan.recipe
            self.folder.save_best(
                self.trainer,
                dict(metrics),
                own_code=bool(recipe.model.own_code),
                moments=recipe.train.moments != "anew",
            )
        self.save()
        self.monitor.resume()

    def save(self) -> None:
        """Write a checkpoint from which the run resumes exactly."""
        document = {
            "journal": self.journal.length(),
            "journal_crc32": self.journal.crc32,
            "eval_seconds": self.eval_seconds,
            "threads": torch.get_num_threads(),
            "eval_threads": self.eval_threads,
            "sampler": self.choice.sampler if self.choice else None,
            "model": self.plan.race.settings if self.plan.race else None,
            START: self.plan.start.checksum if self.plan.start else None,
        } | self.monitor.state()
        keep = self.plan.recipe.train.keep_checkpoints
        self.folder.save_checkpoint(self.trainer, self.stopping, document, keep)

    def finish(self) -> dict[str, Any]:
        """Evaluate the best model on all users and write the result."""
        plan, folder, trainer, steps = self.plan, self.folder, self.trainer, self.trainer.step
        if plan.ranks is not None:
            plan.ranks.wait()  # for the first to have written the best model
        folder.load_best(trainer)
        valid = plan.evaluator.validate(trainer.model)
        unseen = valid.unseen.means() if valid.unseen else {}
        result = {
            "model": plan.own_model or plan.recipe.model.name,
            "sampler": plan.recipe.sampler["name"],
            "seed": plan.recipe.train.seed,
            "steps": steps,
            "best_step": self.stopping.best_step,
            "seconds_per_1000_steps": 1000 * self.monitor.seconds / steps,
            "cpu_seconds_per_1000_steps": 1000 * self.monitor.cpu_seconds / steps,
            "convergence_minutes": (self.monitor.seconds + self.eval_seconds) / 60,
            "metric": plan.evaluator.decision(),
            "valid": without_nan(valid.means()),
            "valid_unseen": without_nan(unseen),
            "num_items": plan.dataset.num_items,
        }
        for key, chosen in (("advice", self.choice), (RACE, plan.race)):
            if chosen:
                result[key] = asdict(chosen)
                plan.progress.say(str(chosen))
        if plan.start:
            result[START] = plan.start.record()
        if plan.test:
            result |= plan.evaluator.test(trainer.model, folder.path if folder.writes else None)
        # A table that is spread over ranks cannot be read by the first alone.
        if plan.test and folder.writes and not trainer.optimizer.sharded:
            plan.evaluator.write_examples(trainer.model, folder.path)
        folder.write_result(result)
        return result
