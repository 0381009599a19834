"""Each page in a real browser: it fits, it fetches nothing, it complains of nothing, and it can be read in the dark."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from screenshots import keep_screenshot

from analysis_samples import an_analysis
from bench_samples import a_benchmark, a_row, ours, some_rows
from builders import a_failure, a_study, samples
from explain_samples import explanation, make_finding, price
from torchwise.plan import Plan
from torchwise.records import Interval, Measurement
from torchwise.records.explanation import Basis, Explanation, Kernel, Saving, SourceLocation, Stage
from torchwise.report.analysis import render_analysis_html
from torchwise.report.bench import render_bench_html
from torchwise.report.explanation import render_explanation_html
from torchwise.report.study import render_html

LONG = "/a/rather/long/path/to/some/users/models/with_no_place_to_break_it_anywhere_at_all.py:make_the_model"
WIDE = Plan(
    backend="inductor",
    mode="max-autotune-no-cudagraphs",
    options=(("coordinate_descent_tuning", True), ("max_autotune_gemm_backends", "ATEN,TRITON,CUTLASS")),
    memory_format="channels_last",
)


def an_explanation() -> Explanation:
    """Return one of a real run's size: findings of every kind, and kernels with the names that Inductor gives them."""
    times = {
        "graph capture": 1.2,
        "graph optimisation": 2.1,
        "backend selection": 0.3,
        "kernel generation": 3.2,
        "compilation": 32.2,
        "caching and execution": 1.2,
    }
    fused = "cpp_fused__native_batch_norm_legit_no_training_add_relu_threshold_backward_" * 2
    kernels = (
        Kernel("aten::convolution", 53.0, 21e-3, 9e7, 8e9, 0.61),
        Kernel(fused + "17", 49.0, 3e-3, 4e7, None, 0.34, generated=True),
        Kernel("aten::addmm", 1.0, 0.4e-3, 8e6, 4e6, 0.8),
        Kernel("cpp_fused_mean_relu_3", 1.0, 40e-6, 4e4, None, 0.02, generated=True),
        Kernel("aten::max_pool2d_with_indices", 1.0, 2e-3, 4e6, None, 0.05),
    )
    unclear = Saving(Interval(-3e-6, 1e-6, 5e-6), Basis.MEASURED, "timed in alternation, 40 rounds: no guards")
    most = Saving(
        Interval(0.0, 1e-3, 4e-3), Basis.ESTIMATED, "its time beyond the roofline is the most there is to save"
    )
    return explanation(
        make_finding("slower", price(2e-3), plan=WIDE),
        make_finding("roofline", most, title=f"{fused}17 reaches 34% of what this hardware can do"),
        make_finding("unclear", unclear, places=(SourceLocation(LONG, 12, "forward", f"x = self.layer(x)  # {LONG}"),)),
        make_finding("saving unknown"),
        measurement=Measurement(samples(0.024, 60), samples(0.031, 60, seed=1), calls_per_round=4),
        stages=tuple(Stage(name, s, "8 nodes", "2 fused kernels", ("kernels-0_0.py",)) for name, s in times.items()),
        kernels=kernels,
    )


PAGES: dict[str, Callable[[], str]] = {
    "tune": lambda: render_html(a_study()),
    "tune-running": lambda: render_html(a_study([a_failure(message=LONG * 3, traceback=LONG * 9)], decided=None)),
    "analyze": lambda: render_analysis_html(an_analysis()),
    "analyze-wide": lambda: render_analysis_html(an_analysis(WIDE)),
    "analyze-failed": lambda: render_analysis_html(
        an_analysis(None, None, trial=a_failure(message=LONG, traceback=LONG * 9), steady=None, batches=())
    ),
    "explain": lambda: render_explanation_html(an_explanation()),
    "explain-bare": lambda: render_explanation_html(explanation(kernels=(), stages=(), limits=None)),
    "bench": lambda: render_bench_html(
        a_benchmark(
            (*some_rows(), *some_rows("my.module:factory"), a_row("eager", 1.0, target=LONG), ours(target=LONG))
        )
    ),
    "bench-empty": lambda: render_bench_html(a_benchmark(())),
}
WIDTHS = (400, 1400)
MIN_CONTRAST, LARGE_CONTRAST = 4.5, 3.0
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
    if (!own || !e.getClientRects().length || e.closest('.visually-hidden')) continue;
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
    """An open page, with the browser's messages about it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def files(folder: Path) -> dict[str, Path]:
    found = {name: folder / f"{name}.html" for name in PAGES}
    for name, file in found.items():
        file.write_text(PAGES[name](), encoding="utf-8")
    return found


@pytest.fixture(scope="module")
def visit(browser: Any, files: dict[str, Path], folder: Path) -> Any:
    """Show a page by name, width and colour scheme. It is opened once, and every part of it unfolded."""

    @functools.cache
    def open_it(name: str) -> Visit:
        found = Visit(context.new_page())
        found.page.on("console", lambda message: found.complaints.append(message.text))
        found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
        found.page.on("request", lambda asked: found.requests.append(asked.url))
        found.page.goto(files[name].as_uri())
        found.page.evaluate("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        return found

    def show(name: str, width: int, scheme: str = "light", media: str = "screen") -> Visit:
        found = open_it(name)
        found.page.set_viewport_size({"width": width, "height": 900})
        found.page.emulate_media(media=media, color_scheme=scheme)
        keep_screenshot(found.page, folder / f"{name}-{width}-{scheme}-{media}.png", whole=True)
        return found

    with browser.new_context() as context:
        yield show


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
    faint = [(ratio, text) for ratio, large, text in seen if ratio < (LARGE_CONTRAST if large else MIN_CONTRAST)]
    assert faint == []


def test_each_place_of_a_finding_leads_to_its_line(visit: Callable[..., Visit]) -> None:
    links = visit("explain", 1400).page.eval_on_selector_all("article a", "found => found.map((e) => e.href)")
    assert links[0] == "file:///home/me/model.py#L12"
    assert len(links) == 4


def test_the_dark_page_is_dark_and_the_light_one_and_paper_are_light(visit: Callable[..., Visit]) -> None:
    def brightness(scheme: str, media: str) -> int:
        color = visit("analyze", 1400, scheme, media).page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in color.removeprefix("rgb(").rstrip(")").split(","))

    assert brightness("dark", "screen") < 150
    assert brightness("light", "screen") > 700
    assert brightness("dark", "print") > 700


@pytest.mark.parametrize("name", ["tune", "analyze", "explain", "bench"])
def test_every_plot_is_drawn_with_its_figures_behind_it(visit: Callable[..., Visit], name: str) -> None:
    page = visit(name, 1400).page
    plots = page.query_selector_all("figure")
    assert len(plots) >= 2
    for plot in plots:
        box = plot.query_selector("svg").bounding_box()
        assert box["width"] > 300
        assert box["height"] > 80
        assert plot.query_selector("tbody tr") is not None
