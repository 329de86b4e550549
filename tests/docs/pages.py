"""Reads the code blocks of the pages, and the comments that say how to run them.

Comments in a page may say:

    <!-- given: dataset shop; run runs/first -->    copy these sample files into the folder first
    <!-- before: seen = 3 -->                       run this Python code, which is not shown
    <!-- not run: needs PostgreSQL -->              skip the next block, for this reason
    <!-- in the background -->                      the next block starts a server
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = {"sh", "bash", "console"}
RUN = SHELL | {"python"}

PIECE = re.compile(
    r"<!-- *(?P<comment>.*?)-->"
    r"|^(?P<indent> *)(?P<fence>`{3,}|:{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^ *(?P=fence) *$",
    flags=re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A code block of a page, or an instruction in a comment (language "given" or "before")."""

    page: Path
    line: int
    language: str
    code: str
    not_run: str | None = None  # the reason for skipping it
    background: bool = False

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read(page: Path) -> list[Block]:
    """All blocks and instructions of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks: list[Block] = []
    reason: str | None = None
    background = False
    for piece in PIECE.finditer(text):
        line = text.count("\n", 0, piece.start()) + 1
        if piece["comment"] is not None:
            word, colon, rest = piece["comment"].strip().partition(":")
            if word == "not run":
                reason = rest.strip()
            elif word == "in the background":
                background = True
            elif colon and word in {"given", "before"}:
                blocks.append(Block(page, line, word, textwrap.dedent(rest).strip()))
            continue
        code = textwrap.dedent(piece["code"])
        blocks.append(Block(page, line, piece["language"].strip(), code, reason, background))
        reason, background = None, False
    return blocks


def commands(block: Block) -> list[str]:
    """The commands of a shell block, one per line, without console output."""
    lines = re.sub(r" *\\\n *", " ", block.code).splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
