"""`Sitting`: a run from its newest checkpoint to its result, or to an interruption."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, cast

import torch

from crossbatch.errors import ConfigError, DataError
from crossbatch.files import sealed
from crossbatch.negatives import CrossBatchSampler, NonFiniteLossError
from crossbatch.training.advice import Advice, advise, is_auto
from crossbatch.training.assemble import build_trainer, pick_device, resolve
from crossbatch.training.course import NOTHING_YET, Course, Probe
from crossbatch.training.distributed.start import check_alike, together
from crossbatch.training.distributed.trainer import RankTrainer
from crossbatch.training.earlier_advice import earlier_advice
from crossbatch.training.endings import DivergedError, Interrupted
from crossbatch.training.environment import environment
from crossbatch.training.examples import write_examples
from crossbatch.training.interrupt import interrupt_flag
from crossbatch.training.loop import EarlyStopping, Limits, train_loop
from crossbatch.training.monitor import Monitor
from crossbatch.training.outcome import PAPER_METRICS, evaluate_split, finite, measure_test
from crossbatch.training.run_folder import OWN_MODEL, flat
from crossbatch.training.threads import measured_threads, using

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from crossbatch.config import Recipe
    from crossbatch.data import Batch, Dataset
    from crossbatch.evaluation import Evaluation
    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.journal import Journal
    from crossbatch.training.progress import Progress
    from crossbatch.training.run_folder import RunFolder
    from crossbatch.training.step import Trainer
    from crossbatch.training.trackers import Tracker


@dataclass(slots=True)
class Sitting:
    """What `fit` was asked for, and the folder that it goes to.

    Attributes:
        dataset: What to train on.
        recipe: Resolved.
        folder: Of the run.
        model: Towers of the caller's own, or None.
        progress: Where to show progress.
        trackers: Further places that journal lines go to.
        probe: Measures beside training.
        test: Whether to look at the test users.
        ranks: The processes that train together, or None.
        advice: Where the recipe leaves the sampler to us.
        eval_threads: CPU threads of evaluations.
    """

    dataset: Dataset
    recipe: Recipe
    folder: RunFolder
    model: torch.nn.Module | None
    progress: Progress
    trackers: tuple[Tracker, ...]
    probe: Probe | None
    test: bool
    ranks: Ranks | None
    advice: Advice | None = None
    eval_threads: int = 1

    def run(self) -> dict[str, Any]:
        """Train, measure, and return the content of `result.json`."""
        train = self.recipe.train
        if self.ranks is not None:
            check_alike(self.ranks, self._facts())
        finished = self.folder.result()
        if finished is not None:
            self.folder.check_config(self._config())
            return finished
        stopping = EarlyStopping(train.patience)
        trainer, saved = together(self.ranks, lambda: self._restore(stopping))
        document: dict[str, Any] = NOTHING_YET | (saved or {})
        # Sums depend on how they are split: a resumed run uses the threads that it began with.
        threads = train.threads or document.get("threads") or self._best_threads(trainer)
        self.eval_threads = train.threads or document.get("eval_threads") or torch.get_num_threads()
        self.folder.write_config(self._config())
        journal = self.folder.journal(document["journal"])
        if document.get("journal_crc32") not in (None, journal.crc32):
            self.progress.say(
                f"{self.folder.path / 'journal.jsonl'} was damaged after the checkpoint: training "
                "goes on exactly, curves that are drawn from it may have gaps"
            )
        try:
            with using(threads):
                return self._train(trainer, stopping, document, journal)
        finally:
            journal.close()

    def _chosen(self) -> Recipe:
        """The recipe with the sampler that `"auto"` stands for, chosen once in a run's life."""
        if not is_auto(self.recipe):
            return self.recipe
        self.advice = earlier_advice(self.folder) or advise(self.recipe, self.dataset, self.model)
        if self.ranks is not None:  # it may have been measured
            self.advice = self.ranks.collect_objects(self.advice)[0]
        self.progress.say(str(self.advice))
        return resolve(self.advice.applied_to(self.recipe), self.dataset)

    def _restore(self, stopping: EarlyStopping) -> tuple[Trainer, dict[str, Any] | None]:
        """A trainer in the state of the newest checkpoint, if any, and what that remembers."""
        self.dataset.verify()  # hours of training deserve a second
        self.folder.check_config(self._config())
        trainer = build_trainer(self._chosen(), self.dataset, self.model, self.ranks)
        saved = self.folder.load_checkpoint(trainer, stopping, self.progress.say)
        chosen = (saved or {}).get("sampler")
        if self.advice and chosen not in (None, self.advice.sampler):
            raise DataError(
                f"{self.folder.path / 'config.json'} is missing or was changed: its run chose "
                f"other negatives, {chosen}; restore it, or start anew elsewhere"
            )
        return trainer, saved

    def _best_threads(self, trainer: Trainer) -> int:
        if self.ranks is not None:  # they share the cores as their launcher decided
            return torch.get_num_threads()
        return measured_threads(trainer, next(self._batches(trainer)))

    def _train(
        self,
        trainer: Trainer,
        stopping: EarlyStopping,
        document: dict[str, Any],
        journal: Journal,
    ) -> dict[str, Any]:
        course = self._course(trainer, stopping, document, journal)
        self._check_metric(self.recipe.train.metric)
        if trainer.step == 0:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            course.write("start", 0, time=now, environment=environment())
        else:
            course.write("resume", trainer.step)
        self.progress.start(trainer.step, self.recipe.train.max_steps)
        reason = self._run_course(course)
        course.monitor.pause()
        self.progress.stop()
        if reason == "interrupted":
            course.stop()
            raise Interrupted(
                f"stopped at step {trainer.step} and saved; go on with the same command and "
                f"--resume"
            )
        course.write("stop", trainer.step, reason=reason)
        with using(self.eval_threads):
            return self._finish(course)

    def _course(
        self,
        trainer: Trainer,
        stopping: EarlyStopping,
        document: dict[str, Any],
        journal: Journal,
    ) -> Course:
        train = self.recipe.train
        write = self._writer(journal)
        monitor = Monitor(trainer, train.log_every, write)
        monitor.load_state(document)
        return Course(
            trainer,
            stopping,
            self.folder,
            journal,
            monitor,
            write,
            lambda: self._validate(trainer, train.eval_users or None),
            self.progress,
            self.probe,
            train.keep_checkpoints,
            document["eval_seconds"],
            self.eval_threads,
            chosen=self.advice.sampler if self.advice else None,
        )

    def _run_course(self, course: Course) -> str:
        """Train to the end, and say why it is the end."""
        train, trainer = self.recipe.train, course.trainer
        with interrupt_flag(launched=self.ranks is not None) as interrupted:
            if isinstance(trainer, RankTrainer):
                interrupted = trainer.agree_to_stop(interrupted)
            try:
                course.interrupted = interrupted
                limits = Limits(
                    train.max_steps, train.eval_every, train.metric, self._warmup_steps(trainer)
                )
                return train_loop(trainer, self._batches(trainer), course, course.stopping, limits)
            except NonFiniteLossError as error:
                course.write("stop", trainer.step, reason="nan")
                raise DivergedError(
                    f"batch {trainer.step} of seed {train.seed}: {error}; the last good checkpoint "
                    f"is in {self.folder.checkpoints}"
                ) from None

    def _finish(self, course: Course) -> dict[str, Any]:
        """Evaluate the best model on all users and write the result."""
        trainer, monitor, steps = course.trainer, course.monitor, course.trainer.step
        if self.ranks is not None:
            self.ranks.wait()  # for the first to have written the best model
        self.folder.load_best(trainer)
        result = {
            "model": self.recipe.model.name if self.model is None else type(self.model).__name__,
            "sampler": self.recipe.sampler["name"],
            "seed": self.recipe.train.seed,
            "steps": steps,
            "best_step": course.stopping.best_step,
            "seconds_per_1000_steps": 1000 * monitor.seconds / steps,
            "cpu_seconds_per_1000_steps": 1000 * monitor.cpu_seconds / steps,
            "convergence_minutes": course.minutes,
            "valid": finite(self._validate(trainer).means()),
            "num_items": self.dataset.num_items,
        }
        if self.advice:
            result["advice"] = self.advice.to_dict()
            self.progress.say(str(self.advice))
        path = self.folder.path
        if self.test:
            per_user = path / "per_user" if self.folder.writes else None
            result |= measure_test(trainer.model, self.dataset, self.recipe, per_user, self.ranks)
        # A table that is spread over ranks cannot be read by the first alone.
        if self.test and self.folder.writes and not trainer.optimizer.sharded:
            write_examples(path / "examples.json", trainer.model, self.dataset, self.recipe)
        self.folder.write_result(result)
        return result

    def _validate(self, trainer: Trainer, max_users: int | None = None) -> Evaluation:
        return evaluate_split(
            trainer.model, self.dataset, self.recipe, "valid", max_users, self.ranks
        )

    def _batches(self, trainer: Trainer) -> Iterator[Batch]:
        """The batches that the trainer has not had yet."""
        train = self.recipe.train
        device = pick_device(train.device)
        batches = self.dataset.batches(
            train.batch_size,
            seed=train.seed,
            history_length=train.history_length,
            start=trainer.step,
            later=trainer.mask_later,
        )
        if device.type == "cpu":
            return batches
        return (batch.to(device) for batch in batches)

    def _writer(self, journal: Journal) -> Callable[..., None]:
        def write(event: str, step: int, **fields: Any) -> None:
            journal.write(event, step, **fields)
            self.progress.event(event, step, fields)
            for tracker in self.trackers:
                tracker.event(event, step, fields)

        return write

    def _warmup_steps(self, trainer: Trainer) -> int:
        sampler = trainer.sampler
        wait = self.recipe.train.patience_from_warmup and isinstance(sampler, CrossBatchSampler)
        return cast("CrossBatchSampler", sampler).warmup_steps if wait else 0

    def _check_metric(self, metric: str) -> None:
        name, _, k = metric.partition("@")
        if name not in PAPER_METRICS or k not in ("20", "50"):
            raise ConfigError(
                f"train.metric must be one of {', '.join(PAPER_METRICS)} at 20 or 50, such as "
                f"recall@50, got {metric!r}"
            )

    def _facts(self) -> dict[str, Any]:
        """What all ranks must have alike."""
        config = self._config()
        facts = flat({key: config[key] for key in (*config,) if key != "environment"})
        del facts["dataset.path"]
        return facts | {
            "the newest checkpoint in the run folder": self.folder.newest_checkpoint(),
            "the result in the run folder": self.folder.result(),
        }

    def _config(self) -> dict[str, Any]:
        chosen = {"advice": sealed(self.advice.to_dict())} if self.advice else {}
        return (
            self.recipe.to_dict()
            | chosen
            | {
                "dataset": {
                    "path": str(self.dataset.path.resolve()),
                    "checksum": self.dataset.manifest["checksum"],
                },
                OWN_MODEL: None if self.model is None else type(self.model).__name__,
                "version": version("crossbatch"),
                "environment": environment(),
            }
        )
