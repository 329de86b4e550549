"""The page in a real browser; left out where no Chromium is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from typing import TYPE_CHECKING

import pytest

from crossbatch.reports.html import write_html
from crossbatch.reports.journal import Curve
from crossbatch.reports.plots import Line, Mark, Plot
from crossbatch.reports.runs import read_runs
from crossbatch.reports.svg import write_panels

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import MakeRun

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium to open the page with"),
]
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--enable-logging=stderr",
]  # fmt: skip
# Reads what a user would see: the size of every chart, and how wide the page is on a phone.
PROBE = """<script>
const box = (chart) => chart.querySelector(".line, .bar").getBoundingClientRect();
const boxes = [...document.querySelectorAll("svg.chart")].map(box).map((b) => [b.width, b.height]);
const button = document.querySelector(".legend button");
button.click();
const off = document.querySelectorAll(".series.off").length;
document.getElementById("theme").click();
const requests = performance.getEntriesByType("resource").map((entry) => entry.name);
const probe = { boxes, off, requests, theme: document.documentElement.dataset.theme,
  overflow: document.documentElement.scrollWidth - innerWidth };
document.body.insertAdjacentHTML("beforeend", "<pre id=probe></pre>");
document.getElementById("probe").textContent = JSON.stringify(probe);
</script>"""


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800, check=True)


@pytest.fixture
def page(make_run: MakeRun, tmp_path: Path) -> Path:
    users = {"recall@50": [0.1, 0.2, 0.3] * 10}
    more = {"recall@50": [0.2, 0.2, 0.3] * 10}
    paths = [make_run("base", per_user=users), make_run("ours", sampler="mixed", per_user=more)]
    return write_html(read_runs(paths), tmp_path / "report.html")


def test_page_opens_without_a_complaint(page: Path, tmp_path: Path) -> None:
    done = browse(page, tmp_path / "profile", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    assert 'data-tip="' in done.stdout  # the script ran under the page's own policy
    assert "<title>" not in done.stdout.split("<body>")[1]


def test_charts_are_visible_and_nothing_overflows_a_narrow_window(
    page: Path, tmp_path: Path
) -> None:
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    probed = tmp_path / "probed.html"
    probed.write_text(text.replace("</body>", f"{PROBE}</body>"))
    done = browse(probed, tmp_path / "profile", "--dump-dom", "--window-size=500,900")
    assert "CONSOLE" not in done.stderr
    found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout)
    assert found is not None
    probe = json.loads(unescape(found[1]))
    assert len(probe["boxes"]) > 5
    assert all(width > 1 for width, _ in probe["boxes"])
    assert probe["requests"] == []  # with the policy taken out, so nothing was merely forbidden
    assert probe["off"] >= 1  # a legend entry hid its line
    assert probe["theme"] in {"light", "dark"}
    assert probe["overflow"] <= 0


def test_a_figure_alone_is_drawn_by_the_browser(tmp_path: Path) -> None:
    """Opened as a file, its style inside it: the ground is white and the line has its colour."""
    line = Line("In-batch", "", Curve((100.0, 200.0), (1.0, 3.0)), 0)
    plot = Plot("recall", "MIND", "step", "Recall@50, %", [line], marks=[Mark(150.0, "here")])
    drawing = write_panels([plot], tmp_path / "figure.svg", columns=1)
    shot = tmp_path / "figure.png"
    done = browse(drawing, tmp_path / "profile", f"--screenshot={shot}", "--window-size=448,360")
    assert "CONSOLE" not in done.stderr
    image = pytest.importorskip("matplotlib.image").imread(shot)
    colors = {tuple(pixel) for pixel in (255 * image[..., :3]).round().astype(int).reshape(-1, 3)}
    assert (255, 255, 255) in colors
    assert (0x2F, 0x6F, 0xB7) in colors
