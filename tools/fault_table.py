"""Write the figures of the last `make faults` into docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURES = DOCS / "reliability.md", DOCS / "reliability" / "faults.json"
BEGIN, END = "<!-- faults -->\n", "<!-- /faults -->\n"


def table(document: dict[str, Any]) -> str:
    """The run in a sentence, and its figures as a Markdown table with their sum."""
    lines = []
    if "day" in document:  # not of figures that were gathered from several runs
        run = f"`make faults FAULTS={document['asked']}`, seed {document['seed']}"
        end = f"{document['minutes']} minutes, {document['failed_tests']} failed tests."
        lines = [f"{run}, {document['day']}: {end}", ""]
    lines += ["| fault | injected | survived | lost | how |", "|---|---:|---:|---:|---|"]
    kinds = document["kinds"]
    for kind, count in kinds.items():
        remarks = count["remarks"]
        how = ", ".join(f"{number} {remark}" for remark, number in sorted(remarks.items()))
        lines.append(
            f"| {kind} | {count['injected']} | {count['survived']} | {count['lost']} | {how} |"
        )
    sums = [sum(int(str(c[key])) for c in kinds.values()) for key in ("injected", "survived")]
    lines.append(f"| **all** | **{sums[0]}** | **{sums[1]}** | **{sums[0] - sums[1]}** | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Replace what stands between the marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    PAGE.write_text(before + BEGIN + table(figures) + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
