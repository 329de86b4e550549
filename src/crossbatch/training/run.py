"""`fit`: a recipe and a dataset in, a run folder out; killed at any moment, it resumes exactly.

result = fit(open_dataset("books"), Recipe.load(Path("recipes/demo.toml")), "runs/first")
"""

from __future__ import annotations

import datetime
import platform
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from crossbatch.errors import ConfigError
from crossbatch.negatives import CrossBatchSampler, NonFiniteLossError
from crossbatch.training.advice import Advice, advise, is_auto
from crossbatch.training.assemble import build_trainer, pick_device, resolve
from crossbatch.training.distributed.onlooker import open_folder
from crossbatch.training.distributed.start import check_alike, joined, restarted, together
from crossbatch.training.distributed.trainer import RankTrainer
from crossbatch.training.endings import DivergedError, Interrupted
from crossbatch.training.examples import write_examples
from crossbatch.training.interrupt import interrupt_flag
from crossbatch.training.monitor import Monitor
from crossbatch.training.outcome import PAPER_METRICS, evaluate_split, finite, measure_test
from crossbatch.training.progress import Progress, Silent
from crossbatch.training.run_folder import flat
from crossbatch.training.threads import measured_threads
from crossbatch.training.trainer import EarlyStopping, StepRecord, Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from crossbatch.config import Recipe
    from crossbatch.data import Batch, Dataset
    from crossbatch.evaluation import Evaluation
    from crossbatch.training.distributed.ranks import Ranks
    from crossbatch.training.journal import Journal
    from crossbatch.training.run_folder import RunFolder
    from crossbatch.training.trackers import Tracker


# What a checkpoint remembers beside the training state.
NOTHING_YET = {"journal": 0, "seconds": 0.0, "cpu_seconds": 0.0, "eval_seconds": 0.0, "warned": []}


class Probe(Protocol):
    """Measures the towers while they learn, without changing what they learn."""

    def __call__(self, trainer: Trainer, step: int) -> Mapping[str, Any] | None:
        """Called after every step; what it returns becomes a journal line `"probe"`."""


def fit(
    dataset: Dataset,
    recipe: Recipe,
    out: Path | str,
    *,
    model: torch.nn.Module | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    trackers: tuple[Tracker, ...] = (),
    probe: Probe | None = None,
    test: bool = True,
) -> dict[str, Any]:
    """Train until early stopping, restore the best model, evaluate it on the test users.

    Processes that torchrun started train one model together: see `training.distributed`.

    Args:
        dataset: What to train on.
        recipe: What to train.
        out: Run folder, empty or absent unless `resume`.
        model: Towers of your own instead of `recipe.model`: any module whose call gives `(u, v)` of
            a batch and that has methods `users` and `items`, as `TwoTower` does.
        resume: Whether to go on with the run in `out`. A finished one returns its result. A process
            that torchrun started again does so anyway.
        progress: Where to show progress; silent by default.
        trackers: Further places that journal lines go to; what one raises ends the run.
        probe: Measures beside training; its time is not training time.
        test: Whether to look at the test users. A search for settings must not.

    Returns:
        The content of `result.json`.

    Raises:
        Interrupted: If Ctrl-C ended training; a checkpoint was saved.
        DivergedError: If the loss was not finite; the last good checkpoint stays.
    """
    recipe = resolve(recipe, dataset)
    with joined() as ranks:
        resume = resume or restarted()
        folder = together(ranks, lambda: open_folder(Path(out), resume=resume, ranks=ranks))
        speaks = folder.writes
        try:
            run = _Run(
                dataset,
                recipe,
                folder,
                model,
                (speaks and progress) or Silent(),
                trackers if speaks else (),
                probe,
                test,
                ranks,
            )
            return run.run()
        finally:
            folder.close()


@dataclass(slots=True)
class _Run:
    """One sitting of a run."""

    dataset: Dataset
    recipe: Recipe
    folder: RunFolder
    model: torch.nn.Module | None
    progress: Progress
    trackers: tuple[Tracker, ...]
    probe: Probe | None
    test: bool
    ranks: Ranks | None
    advice: Advice | None = None  # where the recipe leaves the sampler to us

    def run(self) -> dict[str, Any]:
        train = self.recipe.train
        if self.ranks is not None:
            check_alike(self.ranks, self._facts())
        finished = self.folder.result()
        if finished is not None:
            return finished
        stopping = EarlyStopping(train.patience)
        trainer, saved = together(self.ranks, lambda: self._restore(stopping))
        document: dict[str, Any] = NOTHING_YET | (saved or {})
        # Sums depend on how they are split: a resumed run uses the threads that it began with.
        torch.set_num_threads(
            train.threads or document.get("threads") or self._best_threads(trainer)
        )
        self.folder.write_config(self._config())
        journal = self.folder.journal(document["journal"])
        if document.get("journal_crc32") not in (None, journal.crc32):
            self.progress.say(
                f"{self.folder.path / 'journal.jsonl'} was damaged after the checkpoint: training "
                "goes on exactly, curves that are drawn from it may have gaps"
            )
        try:
            return self._train(trainer, stopping, document, journal)
        finally:
            journal.close()

    def _chosen(self) -> Recipe:
        """The recipe with the sampler that `"auto"` stands for, chosen once in a run's life."""
        if not is_auto(self.recipe):
            return self.recipe
        earlier = self.folder.config().get("advice")
        self.advice = (
            Advice(**earlier) if earlier else advise(self.recipe, self.dataset, self.model)
        )
        if self.ranks is not None:  # it may have been measured
            self.advice = self.ranks.collect_objects(self.advice)[0]
        self.progress.say(str(self.advice))
        return resolve(replace(self.recipe, sampler=self.advice.sampler), self.dataset)

    def _restore(self, stopping: EarlyStopping) -> tuple[Trainer, dict[str, Any] | None]:
        """A trainer in the state of the newest checkpoint, if any, and what that remembers."""
        self.dataset.verify()  # hours of training deserve a second
        self.folder.check_config(self._config())
        trainer = build_trainer(self._chosen(), self.dataset, self.model, self.ranks)
        return trainer, self.folder.load_checkpoint(trainer, stopping, self.progress.say)

    def _best_threads(self, trainer: Trainer) -> int:
        if self.ranks is not None:  # they share the cores as their launcher decided
            return torch.get_num_threads()
        return measured_threads(trainer, next(self._batches(0)))

    def _train(
        self,
        trainer: Trainer,
        stopping: EarlyStopping,
        document: dict[str, Any],
        journal: Journal,
    ) -> dict[str, Any]:
        train = self.recipe.train
        write = self._writer(journal)
        monitor = Monitor(
            trainer, train.log_every, write, document["seconds"], document["cpu_seconds"]
        )
        monitor.warned.update(document["warned"])
        eval_seconds, users = document["eval_seconds"], 0
        if trainer.step == 0:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            write("start", 0, time=now, environment=environment())
        else:
            write("resume", trainer.step)
        self.progress.start(trainer.step, train.max_steps)

        def save() -> None:
            saved = {
                "journal": journal.length(),
                "journal_crc32": journal.crc32,
                "seconds": monitor.seconds,
                "cpu_seconds": monitor.cpu_seconds,
                "eval_seconds": eval_seconds,
                "warned": sorted(monitor.warned),
                "threads": torch.get_num_threads(),
            }
            self.folder.save_checkpoint(trainer, stopping, saved, train.keep_checkpoints)

        def validate() -> Mapping[str, float]:
            nonlocal eval_seconds, users
            monitor.pause()
            began = time.perf_counter()
            evaluation = self._validate(trainer, train.eval_users or None)
            eval_seconds += time.perf_counter() - began
            users = evaluation.num_users
            return evaluation.means()

        def on_eval(metrics: Mapping[str, float], best: bool) -> None:
            seconds = round(monitor.seconds + eval_seconds, 4)
            fields = {"seconds": seconds, "split": "valid", "users": users}
            write("eval", trainer.step, **fields, metrics=dict(metrics))
            if best:
                self.folder.save_best(trainer, dict(metrics))
            save()
            monitor.go_on()

        def on_step(record: StepRecord) -> None:
            monitor(record)
            if self.probe is not None:
                monitor.pause()
                found = self.probe(trainer, record.step)
                if found:
                    write("probe", record.step, **found)
                monitor.go_on()
            self.progress.step(record.step, record.loss)

        self._check_metric(train.metric)
        with interrupt_flag(launched=self.ranks is not None) as interrupted:
            if isinstance(trainer, RankTrainer):
                interrupted = trainer.agree_to_stop(interrupted)
            try:
                reason = trainer.fit(
                    self._batches(trainer.step),
                    validate,
                    max_steps=train.max_steps,
                    eval_every=train.eval_every,
                    stopping=stopping,
                    metric=train.metric,
                    counting_from=self._warmup_steps(trainer),
                    on_step=on_step,
                    on_eval=on_eval,
                    interrupted=interrupted,
                )
            except NonFiniteLossError as error:
                write("stop", trainer.step, reason="nan")
                raise DivergedError(
                    f"batch {trainer.step} of seed {train.seed}: {error}; the last good checkpoint "
                    f"is in {self.folder.checkpoints}"
                ) from None
        monitor.pause()
        self.progress.stop()
        if reason == "interrupted":
            save()
            raise Interrupted(
                f"stopped at step {trainer.step} and saved; go on with the same command and "
                f"--resume"
            )
        write("stop", trainer.step, reason=reason)
        return self._finish(trainer, stopping, monitor, (monitor.seconds + eval_seconds) / 60)

    def _finish(
        self, trainer: Trainer, stopping: EarlyStopping, monitor: Monitor, minutes: float
    ) -> dict[str, Any]:
        """Evaluate the best model on all users and write the result."""
        steps = trainer.step
        if self.ranks is not None:
            self.ranks.wait()  # for the first to have written the best model
        self.folder.load_best(trainer)
        result = {
            "model": self.recipe.model.name if self.model is None else type(self.model).__name__,
            "sampler": self.recipe.sampler["name"],
            "seed": self.recipe.train.seed,
            "steps": steps,
            "best_step": stopping.best_step,
            "seconds_per_1000_steps": 1000 * monitor.seconds / steps,
            "cpu_seconds_per_1000_steps": 1000 * monitor.cpu_seconds / steps,
            "convergence_minutes": minutes,
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

    def _batches(self, start: int) -> Iterator[Batch]:
        train = self.recipe.train
        device = pick_device(train.device)
        batches = self.dataset.batches(
            train.batch_size, seed=train.seed, history_length=train.history_length, start=start
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
        chosen = {"advice": self.advice.to_dict()} if self.advice else {}
        return (
            self.recipe.to_dict()
            | chosen
            | {
                "dataset": {
                    "path": str(self.dataset.path.resolve()),
                    "checksum": self.dataset.manifest["checksum"],
                },
                "version": version("crossbatch"),
                "environment": environment(),
            }
        )


def environment() -> dict[str, Any]:
    """What a number may depend on besides the code."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
