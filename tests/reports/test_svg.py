"""Charts: axes, lines, bars and tooltips, and what stands in the file."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossbatch.reports.journal import Curve
from crossbatch.reports.plots import Bar, BarChart, Line, Mark, Plot
from crossbatch.reports.svg import (
    COLORS,
    LARGE,
    SMALL,
    Frame,
    bar_chart,
    dash,
    exact,
    limits,
    line_chart,
    log_limits,
    log_ticks,
    short,
    ticks,
)

values = st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}"))


@given(values, st.floats(1e-3, 1e9), st.integers(2, 8))
def test_ticks_are_round_even_and_inside(low: float, width: float, target: int) -> None:
    high = low + max(width, abs(low) * 1e-3)
    found = ticks(low, high, target)
    assert 2 <= len(found) <= 2 * target + 3
    slack = 1e-6 * (high - low)
    assert low - slack <= found[0]
    assert found[-1] <= high + slack
    steps = [b - a for a, b in itertools.pairwise(found)]
    assert max(steps) - min(steps) <= 1e-6 * (high - low)
    mantissa = float(f"{steps[0]:.6g}") / 10 ** math.floor(math.log10(float(f"{steps[0]:.6g}")))
    assert min(abs(mantissa - factor) for factor in (1, 2, 2.5, 5, 10)) < 1e-3


def test_ticks_by_hand() -> None:
    assert ticks(0.03, 0.127) == [0.04, 0.06, 0.08, 0.1, 0.12]
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(3, 3) == [3]


@given(st.lists(values, min_size=1, max_size=20))
def test_limits_hold_every_value(numbers: list[float]) -> None:
    low, high = limits(numbers)
    assert low <= min(numbers)
    assert max(numbers) <= high
    assert low < high


@given(st.lists(values, min_size=1, max_size=20))
def test_limits_of_bars_hold_zero(numbers: list[float]) -> None:
    low, high = limits(numbers, zero=True)
    assert low <= 0 <= high


def test_limits_of_nothing() -> None:
    assert limits([]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (950, "950"), (12_000, "12k"), (-2500, "-2.5k"), (3e6, "3M"), (0.001, "0.001")],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12_000.0, "12,000"), (0.123456, "0.12346"), (-3.0, "-3")]
)
def test_exact(value: float, text: str) -> None:
    assert exact(value) == text


@given(st.floats(1e-9, 1e6), st.floats(1.05, 1e9), st.integers(3, 8))
def test_log_ticks_are_inside_and_few(low: float, factor: float, target: int) -> None:
    found = log_ticks(low, low * factor, target)
    assert 2 <= len(found) <= 2 * target + 3
    assert found == sorted(found)
    assert low * (1 - 1e-6) <= found[0]
    assert found[-1] <= low * factor * (1 + 1e-6)


def test_log_ticks_by_hand() -> None:
    assert log_ticks(100, 11_000) == [100, 200, 500, 1000, 2000, 5000, 10_000]
    assert log_ticks(1e-6, 1e3) == [1e-6, 1e-4, 1e-2, 1, 100]
    assert log_ticks(2.1, 2.6) == [2.1, 2.2, 2.3, 2.4, 2.5, 2.6]


def test_log_limits_leave_out_what_has_no_logarithm() -> None:
    low, high = log_limits([0.0, -3.0, 0.5, 8.0])
    assert 0 < low < 0.5
    assert high > 8
    assert log_limits([0.0]) == (0.1, 1.0)


HOSTILE = "</text><script>alert(1)</script>\"'&"


def plot(*lines: Line) -> Plot:
    return Plot("recall", "Recall", "step", "Recall@50, %", lines)


def line(y: tuple[float, ...], label: str = "In-batch", color: int = 0) -> Line:
    return Line(label, "", Curve(tuple(100.0 * i for i in range(len(y))), y), color)


def elements(svg: str, kind: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(svg).findall(f".//{kind}")


def path_points(svg: str) -> list[tuple[float, float]]:
    path = next(e for e in elements(svg, "path") if e.get("class") == "line")
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.]+) ([\d.]+)", path.get("d", ""))]


@pytest.mark.parametrize("frame", [LARGE, SMALL])
def test_lines_stay_inside_the_frame(frame: Frame) -> None:
    for x, y in path_points(line_chart(plot(line((1.0, -4.0, 9.0, 2.0))), frame)):
        assert frame.left <= x <= frame.edge
        assert frame.top <= y <= frame.base


def test_equal_steps_of_the_data_are_equal_steps_of_the_line() -> None:
    points = path_points(line_chart(plot(line((10.0, 20.0, 30.0)))))
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.11)
    assert y0 > y1 > y2  # larger values stand higher


def test_a_tick_stands_where_its_value_is_drawn() -> None:
    svg = line_chart(plot(line((0.0, 5.0, 10.0))))
    labels = {
        e.text: float(e.get("y", "0")) - 4
        for e in elements(svg, "text")
        if e.get("class") == "tick" and e.get("text-anchor") == "end"
    }
    points = path_points(svg)
    assert labels["0"] == pytest.approx(points[0][1], abs=0.11)
    assert labels["10"] == pytest.approx(points[2][1], abs=0.11)


def test_axes_are_labelled() -> None:
    texts = [e.text for e in elements(line_chart(plot(line((1.0, 2.0)))), "text")]
    assert "Recall@50, %" in texts
    assert "step" in texts


def test_tooltips_tell_series_place_and_value() -> None:
    marked = Line("Mixed", "seed 1", Curve((1000.0, 2000.0), (3.25, 3.5)), 0, best=1)
    titles = [e.text for e in elements(line_chart(plot(marked)), "title")]
    assert titles == ["Mixed · seed 1\nstep 1,000: 3.25", "Mixed · seed 1\nstep 2,000: 3.5 (best)"]


def test_long_lines_answer_at_few_points_but_always_at_the_best() -> None:
    values = tuple(float(i % 7) for i in range(500))
    marked = Line("Mixed", "", Curve(tuple(map(float, range(500))), values), 0, best=333)
    titles = [e.text or "" for e in elements(line_chart(plot(marked)), "title")]
    assert len(titles) <= LARGE.tooltips + 1
    assert sum("(best)" in title for title in titles) == 1


@pytest.mark.parametrize("y", [(2.0,), (0.0, 0.0), (5.0, 5.0), (1e-9, 2e-9), (-1e12, 1e12)])
def test_odd_ranges_are_drawn(y: tuple[float, ...]) -> None:
    svg = line_chart(plot(line(y)))
    assert len(path_points(svg)) == len(y)
    assert "nan" not in svg
    assert "inf" not in svg


def test_hostile_names_stay_text() -> None:
    charts = [
        line_chart(plot(line((1.0, 2.0), HOSTILE))),
        bar_chart(BarChart(HOSTILE, [Bar(HOSTILE, 1.0, HOSTILE)])),
    ]
    for svg in charts:
        assert elements(svg, "script") == []
        assert ElementTree.fromstring(svg).get("role") == "img"
        assert HOSTILE in (ElementTree.fromstring(svg).get("aria-label") or "")


def test_a_screen_reader_hears_where_each_line_ends() -> None:
    svg = line_chart(plot(line((1.0, 2.0), "A"), line((3.0, 1.5), "B", 1)))
    label = ElementTree.fromstring(svg).get("aria-label")
    assert label == "Recall. A: last 2 at step 100; B: last 1.5 at step 100"


def test_bars_are_as_long_as_their_values_and_start_at_zero() -> None:
    svg = bar_chart(
        BarChart("bars", [Bar("a", 2.0, "2"), Bar("b", 4.0, "4"), Bar("c", -2.0, "-2")])
    )
    a, b, c = ((float(e.get("x", "0")), float(e.get("width", "0"))) for e in elements(svg, "rect"))
    assert b[1] == pytest.approx(2 * a[1], abs=0.2)
    assert c[1] == pytest.approx(a[1], abs=0.2)
    assert a[0] == b[0] == pytest.approx(c[0] + c[1], abs=0.2)


def test_reach_keeps_specks_small() -> None:
    speck = [Bar("a", 1e-6, "0")]
    alone, reached = (
        float(
            elements(bar_chart(BarChart("bars", speck, reach=reach)), "rect")[0].get("width", "0")
        )
        for reach in ((), (-1.0, 1.0))
    )
    assert alone > 100
    assert reached == 1.0


def test_whiskers_span_the_interval() -> None:
    svg = bar_chart(BarChart("bars", [Bar("a", 2.0, "2", 0, (1.0, 4.0)), Bar("b", 4.0, "4")]))
    whisker = next(e for e in elements(svg, "path") if e.get("class") == "whisker")
    low, high = map(float, re.match(r"M([\d.]+) [\d.]+H([\d.]+)", whisker.get("d", "")).groups())  # type: ignore[union-attr]
    rects = [(float(e.get("x", "0")), float(e.get("width", "0"))) for e in elements(svg, "rect")]
    zero, unit = rects[1][0], rects[1][1] / 4
    assert low == pytest.approx(zero + unit, abs=0.2)
    assert high == pytest.approx(zero + 4 * unit, abs=0.2)


def test_a_ninth_line_is_dashed() -> None:
    assert dash(0) == dash(COLORS - 1) == ""
    assert dash(COLORS) != ""


def test_equal_factors_are_equal_steps_of_a_logarithmic_axis() -> None:
    curve = Curve((10.0, 100.0, 1000.0), (1.0, 10.0, 100.0))
    svg = line_chart(Plot("p", "P", "x", "y", [Line("a", "", curve, 0)], log_x=True, log_y=True))
    (x0, y0), (x1, y1), (x2, y2) = path_points(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y1 - y0 == pytest.approx(y2 - y1, abs=0.11)


def test_marks_stand_at_their_place_and_only_inside() -> None:
    marks = [Mark(100.0, "here"), Mark(1e9, "far away")]
    svg = line_chart(Plot("p", "P", "step", "y", [line((1.0, 2.0, 3.0))], marks=marks))
    (mark,) = [e for e in elements(svg, "line") if e.get("class") == "mark"]
    assert float(mark.get("x1", "0")) == pytest.approx(path_points(svg)[1][0], abs=0.11)
    texts = [e.text for e in elements(svg, "text")]
    assert "here" in texts
    assert "far away" not in texts


def test_intervals_are_drawn_and_fit() -> None:
    wide = Line("a", "", Curve((0.0, 1.0), (5.0, 6.0)), 0, intervals=[(0.0, 9.0), (6.0, 6.0)])
    svg = line_chart(plot(wide))
    spreads = [e.get("d", "") for e in elements(svg, "path") if e.get("class") == "spread"]
    assert len(spreads) == 2
    _, bottom, top = map(float, re.findall(r"[\d.]+", spreads[0]))
    assert LARGE.top <= top < bottom <= LARGE.base


def test_bars_have_a_scale() -> None:
    svg = bar_chart(BarChart("bars", [Bar("a", 4.0, "4")]))
    ticks = {
        e.text: float(e.get("x", "0")) for e in elements(svg, "text") if e.get("class") == "tick"
    }
    bar = elements(svg, "rect")[0]
    end = float(bar.get("x", "0")) + float(bar.get("width", "0"))
    assert ticks["4"] == pytest.approx(end, abs=0.2)
