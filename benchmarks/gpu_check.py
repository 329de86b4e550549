"""Compare every path of crossbatch on a GPU with the same path on the CPU.

    python benchmarks/gpu_check.py                 # two minutes on a GPU
    python benchmarks/gpu_check.py --device cpu    # a check of this script, where there is none

On the CPU side the operations are their plain torch definitions. Both sides start from the same
weights and read the same batches; negatives are drawn on the CPU, so that they are the same too.
Exit code 1 if a difference is larger than rounding explains. Please send us the output, whether
all lines say ok or not: crossbatch was never run on a GPU by its authors.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from crossbatch import Recipe, fit, open_dataset
from crossbatch.data import PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.kernels import switched_off
from crossbatch.models import MODELS
from crossbatch.negatives import (
    SAMPLERS,
    Candidates,
    CrossBatchSoftmax,
    sampled_softmax_loss,
)
from crossbatch.retrieval import ExactIndex
from crossbatch.training.build import build_trainer, draw_batches, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from crossbatch.data import Dataset

STEPS = 12
LOSS, GRADIENT, METRIC = 2e-4, 2e-3, 0.02  # relative differences that float32 sums may have
BFLOAT16 = 0.03  # of losses: eight bits of precision
SAMPLER_OPTIONS: dict[str, dict[str, Any]] = {
    "uniform": {"num_negatives": 50},
    "mixed": {"num_uniform": 40},
    "cross_batch": {"capacity": 96, "warmup_steps": 2},
    "deferred": {
        "name": "cross_batch",
        "capacity": 96,
        "warmup_steps": 2,
        "item_gradient": "deferred",
    },
}


class Table:
    """Prints a line per comparison and remembers whether all were near enough."""

    def __init__(self) -> None:
        self.failed = 0

    def line(self, path: str, difference: float, allowed: float) -> None:
        """One comparison; NaN is never near enough."""
        good = difference <= allowed
        self.failed += not good
        print(f"{path:58} {difference:9.2e} {allowed:9.0e}  {'ok' if good else 'DIFFERENT'}")

    def run(self, name: str, check: Callable[..., None], *arguments: Any) -> None:
        """A check that raises is a failed line, and the others still run."""
        try:
            check(self, *arguments)
        except Exception as error:
            self.failed += 1
            print(f"{name:58} raised {type(error).__name__}: {error}".splitlines()[0])
            traceback.print_exc()


def apart(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest number; both in float64 on the CPU."""
    found, expected = (each.detach().double().cpu() for each in (found, expected))
    if found.shape != expected.shape:
        return float("inf")
    scale = expected.abs().max().clamp_min(1e-6) if expected.numel() else torch.tensor(1.0)
    return float(((found - expected).abs().max() / scale) if found.numel() else 0.0)


def check_loss(table: Table, device: torch.device) -> None:
    """The softmax loss and its gradients: masks, a bank, chunks."""
    generator = torch.Generator().manual_seed(0)
    u, v, cached = (torch.randn(n, 16, generator=generator) for n in (64, 64, 256))
    ids = torch.randint(1, 90, (320,), generator=generator)
    log_q = torch.rand(320, generator=generator).log()

    def values(where: torch.device, dtype: torch.dtype, chunk: int | None) -> list[Tensor]:
        leaves = [each.to(where, dtype).requires_grad_() for each in (u, v)]
        own = Candidates(leaves[1], ids[:64].to(where), log_q[:64].to(where, dtype))
        bank = Candidates(
            cached.to(where, dtype), ids[64:].to(where), log_q[64:].to(where, dtype), cached=True
        )
        loss = sampled_softmax_loss(leaves[0], own, own + bank, temperature=0.2, chunk_size=chunk)
        return [loss, *torch.autograd.grad(loss, leaves)]

    with switched_off():
        expected = values(torch.device("cpu"), torch.float64, None)
    for chunk in (None, 24):
        name = "loss" if chunk is None else "loss in chunks"
        found = values(device, torch.float32, chunk)
        table.line(f"{name}, value", apart(found[0], expected[0]), LOSS)
        for side, one, other in zip(("users", "items"), found[1:], expected[1:], strict=True):
            table.line(f"{name}, gradient of {side}", apart(one, other), GRADIENT)


def check_drop_in(table: Table, device: torch.device, compiled: bool) -> None:
    """`CrossBatchSoftmax` in a loop of one's own: losses, gradients, bank."""
    for item_gradient in ("balanced", "paper"):
        here = CrossBatchSoftmax(
            16, 256, warmup_steps=2, item_counts=torch.ones(91), item_gradient=item_gradient
        )
        there: Any = copy.deepcopy(here).to(device)
        if compiled:
            there = torch.compile(there)
        generator = torch.Generator().manual_seed(1)
        worst = dict.fromkeys(("loss", "gradient"), 0.0)
        for _ in range(STEPS):
            u, v = (torch.randn(32, 16, generator=generator) for _ in range(2))
            ids = torch.randint(1, 91, (32,), generator=generator)
            sides = []
            for module, where in ((here, "cpu"), (there, device)):
                leaves = [each.to(where).requires_grad_() for each in (u, v)]
                with switched_off() if where == "cpu" else nullcontext():
                    loss = module(*leaves, ids.to(where))
                    sides.append((loss, torch.cat(torch.autograd.grad(loss, leaves))))
            for name, one, other in zip(worst, sides[1], sides[0], strict=True):
                worst[name] = max(worst[name], apart(one, other))
        how = f"CrossBatchSoftmax, {item_gradient}{', torch.compile' if compiled else ''}"
        table.line(f"{how}: losses", worst["loss"], LOSS)
        table.line(f"{how}: gradients", worst["gradient"], GRADIENT)
        banks = [module.bank.read().embeddings for module in (there, here)]
        table.line(f"{how}: bank", apart(*banks), LOSS)


def check_training(
    table: Table, device: torch.device, dataset: Dataset, model: str, sampler: str, precision: str
) -> None:
    """Training steps of a recipe: losses of all steps, and the item vectors at the end."""
    cpu = torch.device("cpu")
    found = trained(dataset, recipe_for(model, sampler, device, precision), device)
    with switched_off():
        expected = trained(dataset, recipe_for(model, sampler, cpu, "float32"), cpu)
    half = precision != "float32"
    name = f"{model}, {sampler}{', bfloat16' if half else ''}"
    table.line(f"{name}: losses", apart(found[0], expected[0]), BFLOAT16 if half else LOSS)
    if not half:
        table.line(f"{name}: item vectors", apart(found[1], expected[1]), GRADIENT)


def recipe_for(model: str, sampler: str, device: torch.device, precision: str) -> Recipe:
    """Small, and without random noise, which differs between devices."""
    tower = {"routing": "fixed"} if model == "mind" else {}
    return Recipe.from_dict(
        {
            "model": {"name": model, "dim": 16, "history_dropout": 0.0, "tower": tower},
            "sampler": {"name": sampler} | SAMPLER_OPTIONS.get(sampler, {}),
            "train": {
                "batch_size": 32,
                "device": device.type,
                "precision": precision,
                "max_steps": STEPS,
                "eval_every": STEPS,
            },
        }
    )


def trained(dataset: Dataset, recipe: Recipe, device: torch.device) -> tuple[Tensor, Tensor]:
    """Losses, and the vectors of all items after the last step."""
    recipe = resolve(recipe, dataset)
    trainer = build_trainer(recipe, dataset)
    batches = draw_batches(recipe.train, dataset)
    losses = [trainer.train_step(next(batches).to(device)).loss for _ in range(STEPS)]
    trainer.optimizer.flush()
    with torch.no_grad():
        vectors = trainer.model.items(torch.arange(1, dataset.num_items + 1, device=device))
    return torch.stack(losses), vectors


def check_search(table: Table, device: torch.device) -> None:
    """Exact search: scores of the lists, for one vector and for several interests."""
    generator = torch.Generator().manual_seed(2)
    items = torch.randn(3_001, 16, generator=generator)
    for K in (1, 4):
        queries = torch.randn(40, K, 16, generator=generator)
        with switched_off():
            expected = ExactIndex(items).search(queries, 20)
        found = ExactIndex(items.to(device)).search(queries.to(device), 20)
        table.line(f"exact search, {K} vectors a user", apart(found.scores, expected.scores), LOSS)


def check_run(table: Table, device: torch.device, dataset: Dataset, folder: Path) -> None:
    """A whole run with evaluation: the metrics of test users."""
    results = []
    for where in (device, torch.device("cpu")):
        recipe = recipe_for("youtube_dnn", "in_batch", where, "float32")
        run = folder / f"run-{len(results)}"
        results.append(fit(dataset, recipe, run, test=True).test)
    metrics = sorted(name for name, value in results[1].items() if value is not None)
    numbers = [torch.tensor([result[name] for name in metrics]) for result in results]
    table.line("a run: test metrics", apart(*numbers), METRIC)


def checks(
    device: torch.device, folder: Path, *, compiled: bool
) -> Iterator[tuple[str, Callable[..., None], Any]]:
    """All comparisons in order: name, function, arguments."""
    options = SynthOptions(users=300, items=200, interactions=6_000, seed=0)
    prepare(synthetic_source(options), folder / "data", PrepareOptions())
    dataset = open_dataset(folder / "data")
    yield "loss", check_loss, (device,)
    yield "drop-in loss", check_drop_in, (device, False)
    for model in MODELS:
        yield model, check_training, (device, dataset, model, "in_batch", "float32")
    for sampler in (*SAMPLERS, "deferred"):
        if sampler != "in_batch":
            yield sampler, check_training, (device, dataset, "youtube_dnn", sampler, "float32")
    for model in ("youtube_dnn", "gru4rec"):
        yield "AMP", check_training, (device, dataset, model, "cross_batch", "bfloat16")
    yield "search", check_search, (device,)
    yield "run", check_run, (device, dataset, folder)
    if compiled:
        yield "torch.compile", check_drop_in, (device, True)


def main() -> int:
    """Run all comparisons and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, mps, or cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave out torch.compile")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu_check.py: torch sees no GPU; --device cpu checks the script", file=sys.stderr)
        return 2
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"torch {torch.__version__}, {kind}\n{'':58} {'largest':>9} {'allowed':>9}")
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        compiled = not options.no_compile
        for name, check, arguments in checks(device, Path(folder), compiled=compiled):
            table.run(name, check, *arguments)
    print("all paths agree" if not table.failed else f"{table.failed} lines differ or failed")
    return 1 if table.failed else 0


if __name__ == "__main__":
    sys.exit(main())
