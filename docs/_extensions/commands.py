"""Replaces `%commands%` in a page by a section for each command, made from the command line itself.

The page therefore always lists the options that exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from crossbatch.cli import app as crossbatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

MARKER = "%commands%"


def setup(sphinx: Sphinx) -> dict[str, bool]:
    """Register the replacement for each page that Sphinx reads."""
    sphinx.connect("source-read", _insert)
    return {"parallel_read_safe": True}


def _insert(_sphinx: Sphinx, _page: str, source: list[str]) -> None:
    if MARKER in source[0]:
        root = typer.main.get_command(crossbatch)
        source[0] = source[0].replace(MARKER, "\n".join(_describe("crossbatch", root)))


def _describe(name: str, command: Any) -> Iterator[str]:
    """A section for each command below `command`, depth first."""
    for word, child in getattr(command, "commands", {}).items():
        full = f"{name} {word}"
        if hasattr(child, "commands"):
            yield from _describe(full, child)
        else:
            yield from _section(full, child)


def _section(name: str, command: Any) -> Iterator[str]:
    text = " ".join((command.help or "").split())
    summary, example, usage = text.partition("Example")
    arguments = " ".join(
        parameter.name.upper() for parameter in command.params if not _is_option(parameter)
    )
    yield f"\n## `{name}`\n\n{summary.strip()}\n\n```text\n{name} {arguments} [OPTIONS]\n"
    if example:
        yield "\n".join(line.strip() for line in usage.lstrip("s:").split(";"))
    yield "```\n\n| option | | default |\n|---|---|---|"
    yield from (
        _row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)
    )
    yield ""


def _row(parameter: Any) -> str:
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    name = f"`{names}`" if _is_option(parameter) else f"`{parameter.name.upper()}`"
    default = "required" if parameter.required else _value(parameter.default)
    return f"| {name} | {parameter.help or ''} | {default} |"


def _is_option(parameter: Any) -> bool:
    return any(name.startswith("-") for name in parameter.opts)


def _value(default: Any) -> str:
    shown = not (default is None or default is False or default == [] or callable(default))
    return f"`{default}`" if shown and default != "" else ""
