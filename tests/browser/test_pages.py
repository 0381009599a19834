"""Each page in a real browser: it fits, it fetches nothing, it complains of nothing, and it can be read in the dark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from analysis_samples import an_analysis
from bench_samples import a_benchmark, a_row, ours, some_rows
from builders import a_failure, a_study
from torchwise.plan import Plan
from torchwise.report.analysis import render_analysis_html
from torchwise.report.bench import render_bench_html
from torchwise.report.html import render_html

LONG = "/a/rather/long/path/to/some/users/models/with_no_place_to_break_it_anywhere_at_all.py:make_the_model"
WIDE = Plan(
    backend="inductor",
    mode="max-autotune-no-cudagraphs",
    options=(("coordinate_descent_tuning", True), ("max_autotune_gemm_backends", "ATEN,TRITON,CUTLASS")),
    memory_format="channels_last",
)
PAGES: dict[str, Callable[[], str]] = {
    "tune": lambda: render_html(a_study()),
    "tune-running": lambda: render_html(a_study([a_failure(message=LONG * 3, traceback=LONG * 9)], decided=None)),
    "analyze": lambda: render_analysis_html(an_analysis()),
    "analyze-wide": lambda: render_analysis_html(an_analysis(WIDE)),
    "analyze-failed": lambda: render_analysis_html(
        an_analysis(None, None, trial=a_failure(message=LONG, traceback=LONG * 9), steady=None, batches=())
    ),
    "bench": lambda: render_bench_html(
        a_benchmark(
            (*some_rows(), *some_rows("my.module:factory"), a_row("eager", 1.0, target=LONG), ours(target=LONG))
        )
    ),
    "bench-empty": lambda: render_bench_html(a_benchmark(())),
}
WIDTHS = (400, 1400)
LEAST_CONTRAST, LARGE_CONTRAST = 4.5, 3.0
"""WCAG 2.1, success criterion 1.4.3 (AA), for text and for large text."""

OVERFLOW = """() => {
  const wide = document.documentElement.clientWidth;
  const scrolls = (e) => e && e !== document.body &&
    (['auto', 'scroll'].includes(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  return [...document.querySelectorAll('body *')]
    .filter((e) => !e.closest('svg') || e.tagName === 'text')  // what a plot draws beyond its axes is clipped
    .filter((e) => e.getClientRects().length && e.getBoundingClientRect().right > wide + 1 && !scrolls(e))
    .map((e) => `${e.tagName} ${e.className?.baseVal ?? e.className} ${e.textContent.trim().slice(0, 60)}`);
}"""
CONTRASTS = """() => {
  const channels = (color) => (color.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (color) => {
    const [r, g, b] = channels(color).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (e) => {
    if (!e) return 'rgb(255, 255, 255)';
    const color = getComputedStyle(e).backgroundColor;
    return channels(color)[3] === 0 ? behind(e.parentElement) : color;
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.getClientRects().length || e.closest('.unseen')) continue;
    const style = getComputedStyle(e);
    const ink = e.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(ink), light(behind(e.parentElement.closest('svg') ?? e))].sort((x, y) => y - x);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.5 && style.fontWeight >= 700);
    found.push([(a + 0.05) / (b + 0.05), large, `${e.tagName} ${e.textContent.trim().slice(0, 60)}`]);
  }
  return found;
}"""


@dataclass
class Visit:
    """A page that is open, and what the browser had to say about it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def files(folder: Path) -> dict[str, Path]:
    found = {name: folder / f"{name}.html" for name in PAGES}
    for name, file in found.items():
        file.write_text(PAGES[name](), encoding="utf-8")
    return found


@pytest.fixture
def visit(browser: Any, files: dict[str, Path], folder: Path, request: pytest.FixtureRequest) -> Any:
    """Open a page by name, at a width and in a colour scheme, with every part of it unfolded."""
    opened = []

    def open_it(name: str, width: int, scheme: str = "light", media: str = "screen") -> Visit:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        opened.append(context)
        found = Visit(context.new_page())
        found.page.emulate_media(media=media, color_scheme=scheme)
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda asked: found.requests.append(asked.url))
        found.page.goto(files[name].as_uri())
        found.page.screenshot(path=folder / f"{name}-{width}-{scheme}-{media}.png", full_page=True)
        found.page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        return found

    yield open_it
    for context in opened:
        context.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_width_and_nothing_is_fetched_or_complained_of(
    visit: Callable[..., Visit], name: str, width: int, files: dict[str, Path]
) -> None:
    seen = visit(name, width)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.page.evaluate(OVERFLOW) == []
    assert seen.complaints == []
    assert seen.requests == [files[name].as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_can_be_read(visit: Callable[..., Visit], name: str, scheme: str) -> None:
    seen = visit(name, 1400, scheme).page.evaluate(CONTRASTS)
    assert len(seen) > 20
    faint = [(ratio, text) for ratio, large, text in seen if ratio < (LARGE_CONTRAST if large else LEAST_CONTRAST)]
    assert faint == []


def test_the_dark_page_is_dark_and_the_light_one_and_paper_are_light(visit: Callable[..., Visit]) -> None:
    def brightness(scheme: str, media: str) -> int:
        color = visit("analyze", 1400, scheme, media).page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.removeprefix("rgb(").rstrip(")").split(","))

    assert brightness("dark", "screen") < 150
    assert brightness("light", "screen") > 700
    assert brightness("dark", "print") > 700


@pytest.mark.parametrize("name", ["tune", "analyze", "bench"])
def test_every_plot_is_drawn_with_its_figures_behind_it(visit: Callable[..., Visit], name: str) -> None:
    page = visit(name, 1400).page
    plots = page.query_selector_all("figure")
    assert len(plots) >= 2
    for plot in plots:
        box = plot.query_selector("svg").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 80
        assert plot.query_selector("tbody tr") is not None
