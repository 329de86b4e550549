"""Plots of real runs for the concept pages: log-q correction, staleness of a bank, item gradients.

    python docs/pictures/measure.py OUT          # trains the runs that OUT lacks: minutes

Writes `logq.svg`, `staleness.svg` and `balance.svg` beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from crossbatch import Recipe, fit, open_dataset
from crossbatch.data import PrepareOptions, prepare
from crossbatch.data.synthetic import SynthOptions, synthetic_source
from crossbatch.negatives import Candidates, sampled_softmax_loss
from crossbatch.reports.journal import Curve, read_journal
from crossbatch.reports.plots import Line, Mark, Plot
from crossbatch.reports.svg import write_panels

HERE = Path(__file__).parent
RECIPE = "demo"
TYPES, ITEMS, BATCH, STEPS = 16, 300, 64, 6000  # the simulation of `logq`
RUNS = {
    "in-batch": ['sampler={name="in_batch"}'],
    "as published": ["sampler.item_gradient=paper"],
    "balanced": [],
    "balanced, M = 4096": ["sampler.capacity=4096"],
    "balanced, M = 256": ["sampler.capacity=256"],
}
WARMUP = 200  # of the recipe


def learned_scores(*, corrected: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Train with in-batch negatives on draws from a known p(item | type of user).

    Returns:
        Learned scores and true log p, both `[TYPES, ITEMS]` and centred by row; popularity
        `[ITEMS]`.
    """
    generator = torch.Generator().manual_seed(0)
    taste = torch.randn(TYPES, ITEMS, generator=generator)
    zipf = torch.arange(1, ITEMS + 1).float().reciprocal()
    weights = taste.exp() * zipf
    probability = weights / weights.sum(1, keepdim=True)  # p(item | type)
    popularity = probability.mean(0)
    scores = torch.zeros(ITEMS, TYPES, requires_grad=True)  # an item's vector is its score by type
    optimizer = torch.optim.Adam([scores], lr=0.02)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / STEPS)
        types = torch.randint(TYPES, (BATCH,), generator=generator)
        ids = torch.multinomial(probability[types], 1, generator=generator).squeeze(1)
        users = torch.nn.functional.one_hot(types, TYPES).float()
        log_q = popularity[ids].log() if corrected else torch.zeros(BATCH)
        batch = Candidates(scores[ids], ids, log_q)
        optimizer.zero_grad()
        sampled_softmax_loss(users, batch, batch).backward()
        optimizer.step()
    learned, true = scores.detach().T, probability.log()
    return (
        learned - (learned @ popularity)[:, None],
        true - (true @ popularity)[:, None],
        popularity,
    )


def draw_logq() -> None:
    """Mean error of the learned score by popularity, with and without the correction."""
    lines = []
    for color, (label, corrected) in enumerate({"with − log q": True, "without": False}.items()):
        learned, true, popularity = learned_scores(corrected=corrected)
        order = popularity.argsort(descending=True)
        groups = (learned - true).mean(0)[order].split(15)
        ranks = [15 * place + 8 for place in range(len(groups))]
        curve = Curve(tuple(map(float, ranks)), tuple(float(group.mean()) for group in groups))
        lines.append(Line(label, "", curve, color))
    title = "Score learned minus true log p(item | user)"
    plot = Plot("logq", title, "items by popularity, most popular first", "mean error", lines)
    write_panels([plot], HERE / "logq.svg", columns=1)


def train_runs(out: Path) -> dict[str, Path]:
    """Train the demo's recipe for 1,500 steps for each entry of `RUNS`; finished runs are kept."""
    if not (out / "dataset").exists():
        prepare(
            synthetic_source(SynthOptions(seed=7)), out / "dataset", PrepareOptions(cold_items=0.05)
        )
    dataset = open_dataset(out / "dataset")
    budget = ["train.max_steps=1500", "train.eval_every=100", "train.patience=99"]
    folders = {}
    for label, changes in RUNS.items():
        folders[label] = out / label.replace(" ", "_").replace(",", "").replace("=", "")
        if not (folders[label] / "result.json").exists():
            fit(dataset, Recipe.load(RECIPE, [*budget, *changes]), folders[label])
    return folders


def draw_runs(folders: dict[str, Path]) -> None:
    """Draw the three item gradients (collapse, recall) and the staleness of three bank sizes."""
    gradients = {label: label for label in ("in-batch", "as published", "balanced")}
    sizes = {
        "M = 256": "balanced, M = 256",
        "M = 1024": "balanced",
        "M = 4096": "balanced, M = 4096",
    }
    norms = "‖cached − fresh‖ / ‖fresh‖"
    share = journal_plot(
        "Share of the mean direction", "1: all items alike", folders, gradients,
        "train", "diagnostics", "mean_direction_share",
    )  # fmt: skip
    recall = journal_plot(
        "Validation", "recall@50", folders, gradients, "eval", "metrics", "recall@50"
    )
    stale = journal_plot(
        "Staleness of cached rows", norms, folders, sizes, "train", "diagnostics", "bank_staleness"
    )
    write_panels([share, recall], HERE / "balance.svg", columns=2)
    write_panels([stale], HERE / "staleness.svg", columns=1)


def journal_plot(
    title: str, y_label: str, folders: dict[str, Path], runs: dict[str, str], kind: str, *path: str
) -> Plot:
    """Plot one value of the journals by step, a line for each run (label → key of `RUNS`)."""
    lines = []
    for color, (label, run) in enumerate(runs.items()):
        journal = read_journal(folders[run] / "journal.jsonl")
        lines.append(Line(label, "", journal.curve(kind, "step", *path), color))
    return Plot(title, title, "step", y_label, lines, marks=[Mark(WARMUP, "bank on")])


if __name__ == "__main__":
    torch.set_num_threads(1)
    draw_logq()
    draw_runs(train_runs(Path(sys.argv[1])))
