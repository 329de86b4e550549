"""`crossbatch recommend`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crossbatch.errors import ConfigError

if TYPE_CHECKING:
    from crossbatch.training.saved import SavedRun


def register(app: typer.Typer) -> None:
    """Add the commands of this part."""
    app.command("recommend")(recommend)


def recommend(
    run: Annotated[Path, typer.Argument(help="Run folder of a finished training.")],
    history: Annotated[
        str | None, typer.Option(help="Item ids of the source, oldest first, comma-separated.")
    ] = None,
    user: Annotated[
        int | None, typer.Option(help="Instead: the n-th test user, with what they did next.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many items.")] = 20,
    exclude_seen: Annotated[bool, typer.Option(help="Leave out items of the history.")] = True,
    data: Annotated[
        Path | None, typer.Option(help="Dataset folder, if it has moved since training.")
    ] = None,
) -> None:
    """Recommend items for a history.

    Example: crossbatch recommend runs/first --history i17,i4 -k 10
    """
    from crossbatch.training.saved import open_run
    from crossbatch.training.saved import recommend as search

    if (history is None) == (user is None):
        raise ConfigError("pass either --history ITEM,ITEM or --user N")
    saved = open_run(run, data=data)
    if history is None:
        assert user is not None
        shown, targets, user_id = _test_user(saved, user)
    else:
        shown, targets, user_id = _known_items(saved, history), [], None
    top = search(saved, shown, k, user_id=user_id, exclude_seen=exclude_seen)
    _print(saved, shown, targets, top)


def _known_items(saved: SavedRun, history: str) -> list[int]:
    keys = [key.strip() for key in history.split(",") if key.strip()]
    ids = saved.dataset.item_ids(keys).tolist()
    unknown = [key for key, item in zip(keys, ids, strict=True) if item == 0]
    if unknown:
        typer.echo(f"crossbatch: unknown items left out: {', '.join(unknown)}", err=True)
    known = [item for item in ids if item]
    if not known:
        raise ConfigError(f"--history {history!r} holds no item of the dataset; check the ids")
    return known


def _test_user(saved: SavedRun, number: int) -> tuple[list[int], list[int], int]:
    total = saved.dataset.num_eval_users("test")
    if not 0 <= number < total:
        raise ConfigError(f"--user must be 0 to {total - 1}, got {number}")
    length = saved.recipe.train.history_length
    for batch in saved.dataset.eval_batches("test", batch_size=1024, history_length=length):
        if number < len(batch.user_ids):
            history = [item for item in batch.history[number].tolist() if item]
            return history, batch.targets[number].tolist(), int(batch.user_ids[number])
        number -= len(batch.user_ids)
    raise AssertionError("unreachable: the number was checked against the count")


def _print(
    saved: SavedRun, history: list[int], targets: list[int], top: list[tuple[int, float]]
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    dataset = saved.dataset
    table = Table(show_lines=False)
    table.add_column("history (newest last)")
    table.add_column("recommended")
    table.add_column("score", justify="right")
    left = [escape(title) for title in dataset.item_titles(history)]
    titles = dataset.item_titles([item for item, _ in top])
    right = [
        (f"[bold green]{escape(title)} ✓[/]" if item in targets else escape(title), f"{score:.3f}")
        for title, (item, score) in zip(titles, top, strict=True)
    ]
    for row in range(max(len(left), len(right))):
        table.add_row(
            left[row] if row < len(left) else "", *(right[row] if row < len(right) else ("", ""))
        )
    if targets:
        table.caption = "✓ the user really chose it next"
    Console().print(table)
