"""Write the results of the benchmarks into `docs/performance.md`, between its markers.

    python benchmarks/render.py                        # from benchmarks/out, after `make bench`

A section of the page stands between `<!-- name -->` and `<!-- /name -->`; names are those of
`SECTIONS`. Results of quick runs are skipped.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import growth
import memory
import retrieval
import steps_at_sizes
import validation
from measure.report import floor_table, ratio_table, speed_line, step_table

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
PLOTS = ("steps.svg", "growth.svg")

Document = dict[str, Any]

# Section of the page → file of results and the function that renders it.
SECTIONS: dict[str, tuple[str, Callable[[Document], str]]] = {
    "machine": ("steps", speed_line),
    "floors": ("steps", floor_table),
    "steps": ("steps", step_table),
    "ratios": ("steps", ratio_table),
    "sizes": ("steps_at_sizes", steps_at_sizes.markdown),
    "growth": ("growth", growth.markdown),
    "retrieval": ("retrieval", retrieval.summary),
    "validation": ("validation", validation.markdown),
    "memory": ("memory", memory.markdown),
}


def rendered(page: str, results: dict[str, Document]) -> str:
    """The page with every section that there are results for."""
    for section, (name, table) in SECTIONS.items():
        if name not in results:
            continue
        marked = re.compile(rf"(<!-- {section} -->\n).*?(<!-- /{section} -->)", re.DOTALL)
        content = table(results[name])
        page, found = marked.subn(lambda m, text=content: f"{m[1]}{text}\n{m[2]}", page)  # type: ignore[misc]
        if not found:
            sys.exit(
                f"{PAGE} has no section {section}: write <!-- {section} --><!-- /{section} -->"
            )
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "out", help="folder of the JSON")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    results = {}
    for name in dict.fromkeys(file for file, _ in SECTIONS.values()):
        path = options.results / f"{name}.json"
        document = json.loads(path.read_text()) if path.exists() else None
        if document is None or document["quick"]:
            print(f"{path}: {'missing' if document is None else 'a quick run'}, skipped")
        else:
            results[name] = document
    options.page.write_text(rendered(options.page.read_text(), results))
    folder = options.page.with_suffix("")
    folder.mkdir(exist_ok=True)
    for plot in PLOTS:
        if Path(plot).stem in results:
            shutil.copy(options.results / plot, folder / plot)
    print(f"wrote {options.page}")


if __name__ == "__main__":
    main()
