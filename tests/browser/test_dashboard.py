"""The dashboard in a real browser: each page fits, fetches nothing, follows a search, and is used by keys alone."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from screenshots import keep_screenshot

from builders import a_trial
from dashboard_samples import EVIL, LAST, TARGET, a_filled_store, a_version
from torchwise.records import Standing
from torchwise.report.html import read_colors
from torchwise.store import open_storage

pytest.importorskip("streamlit", reason="these tests need: pip install streamlit")

PAGES = {
    "studies": "",
    "study": "study?study=3",
    "compare": "compare?first=1&second=3",
    "history": f"history?target={TARGET}",
    "kernels": "kernels",
    "analyses": "analyses",
    "benchmarks": "benchmarks",
}
TITLES = {"studies": "Studies", "study": "Study 3", "compare": "Compare 1 and 3", "history": f"History {TARGET}"}
LARGEST = ("studies", "study")
VIEWS = [(400, "light"), (1400, "dark")]
"""Each of the largest pages is seen in both views, and each other one in a narrow and dark one."""
HEIGHT = 1000
START_S, SHOWN_MS = 60, 30_000
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SCROLLED = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('[data-testid=stMain]'))"


@dataclass
class Served:
    """A dashboard that runs, and its store."""

    url: str
    store: str


@dataclass
class Seen:
    """Events in a browser while it showed a page."""

    page: Any
    outside: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = a_filled_store(tmp_path_factory.mktemp("dashboard") / "store.db")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    command = [sys.executable, "-m", "torchwise.cli", "dashboard", "--store", store, "--host", "127.0.0.1"]
    process = subprocess.Popen([*command, "--port", str(port), "--no-browser"], stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}/"
        wait_for(url, process)
        yield Served(url, store)
    finally:
        process.terminate()
        process.wait(20)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}_stcore/health", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the dashboard did not start: exit code {process.poll()}")


@pytest.fixture(scope="module")
def context(browser: Any) -> Iterator[Any]:
    """Share the files of Streamlit among all pages: to fetch and compile them takes longer than to show a page."""
    with browser.new_context() as opened:
        yield opened


def look(context: Any, url: str, width: int = 1400, scheme: str = "light") -> Seen:
    seen = Seen(context.new_page())
    seen.page.set_viewport_size({"width": width, "height": HEIGHT})
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("dialog", lambda dialog: seen.errors.append(dialog.message) or dialog.dismiss())
    seen.page.on("request", lambda sent: None if is_inside(sent.url, url) else seen.outside.append(sent.url))
    seen.page.goto(url)
    seen.page.wait_for_selector(".torchwise h1", timeout=SHOWN_MS)
    return seen


def is_inside(sent: str, url: str) -> bool:
    host = url.split("/")[2]
    return re.match(rf"(https?|ws)://{re.escape(host)}/", sent) is not None or sent.startswith(("data:", "blob:"))


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        *((name, *VIEWS[0]) for name in LARGEST),
        *(pytest.param(name, *VIEWS[1], marks=pytest.mark.nightly) for name in LARGEST),
        *((name, 400, "dark") for name in PAGES if name not in LARGEST),
    ],
)
def test_each_page_fits_and_fetches_nothing(
    name: str, width: int, scheme: str, served: Served, context: Any, folder: Path
) -> None:
    seen = look(context, served.url + PAGES[name], width, scheme)
    page = seen.page
    page.wait_for_function("[...document.images].every(image => image.complete)", timeout=SHOWN_MS)
    keep_screenshot(page, folder / f"dashboard-{name}-{width}-{scheme}.png")
    assert page.evaluate(OVERFLOW) <= 0
    assert page.evaluate(SCROLLED) <= 0
    assert page.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    assert page.title().startswith(f"Torchwise: {TITLES.get(name, '')}")
    assert page.get_by_text("Maximum number").count() == 0, "a docstring of the code"
    first = page.locator("[data-testid=stMain] [data-testid=stVerticalBlock]").first.bounding_box()
    assert first["y"] < 90, "an empty band above the page"
    ground, ink = page.evaluate(
        "[document.querySelector('.stApp'), document.querySelector('.torchwise h1')]"
        ".map((e, i) => getComputedStyle(e)[i ? 'color' : 'backgroundColor'])"
    )
    assert (ground, ink) == tuple(as_computed(read_colors(scheme)[name]) for name in ("page", "ink"))
    assert seen.outside == []
    assert seen.errors == []
    page.close()


def as_computed(color: str) -> str:
    """Return a colour such as #14171b as a browser computes it."""
    return f"rgb({', '.join(str(int(color[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_the_list_is_filtered_and_sorted_and_exported_by_its_address(served: Served, context: Any) -> None:
    page = look(context, f"{served.url}?target={TARGET}&until=2026-03-31&order=smallest+speed-up+first").page
    page.get_by_role("heading", name="Smallest speed-up first").wait_for(timeout=SHOWN_MS)
    assert page.locator(".torchwise tbody th").all_inner_texts() == ["1", "2"]
    with page.expect_download(timeout=SHOWN_MS) as exported:
        page.get_by_role("button", name="Export CSV").click()
    lines = exported.value.path().read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["study", "1", "2"]
    page.close()


def test_a_study_of_ill_will_is_shown_and_not_run(served: Served, context: Any) -> None:
    seen = look(context, f"{served.url}study?study=4")
    seen.page.get_by_text(EVIL).first.wait_for(timeout=SHOWN_MS)
    assert seen.page.query_selector("img[src=x]") is None
    assert seen.page.query_selector("a[href^='javascript']") is None
    assert seen.errors == []
    seen.page.close()


def test_a_search_is_followed_without_a_reload(served: Served, context: Any) -> None:
    seen = look(context, f"{served.url}study?study=5")
    seen.page.get_by_text("1 trial finished, running").wait_for(timeout=SHOWN_MS)
    with open_storage(served.store) as storage:
        storage.finish_trial(5, a_trial(1, LAST, 1.9))
    seen.page.get_by_text("2 trials finished, no trial is running").wait_for(timeout=SHOWN_MS)
    seen.page.close()


def test_the_list_leads_to_a_study(served: Served, context: Any) -> None:
    seen = look(context, served.url)
    seen.page.get_by_role("link", name="2", exact=True).click()
    seen.page.get_by_text("Torchwise study 2,").wait_for(timeout=SHOWN_MS)
    seen.page.close()


def test_a_plan_is_pinned_by_keys_alone(served: Served, context: Any) -> None:
    page = look(context, f"{served.url}study?study=1").page
    reach(page, "Pin, approve or reject a plan")
    page.keyboard.press("Enter")
    page.get_by_text("run only this plan").wait_for(timeout=SHOWN_MS)
    reach(page, "automatic")
    page.keyboard.press("ArrowDown")
    reach(page, "Reason")
    page.keyboard.type("calmer under load")
    reach(page, "Save")
    page.keyboard.press("Enter")
    page.locator(".torchwise").get_by_text("calmer under load").wait_for(timeout=SHOWN_MS)
    environment = a_version("2.11.0+cu130", 1.6).environment
    with open_storage(served.store) as storage:
        (ruling,) = storage.approvals(TARGET, "inference", environment.hardware)
    assert (ruling.standing, ruling.plan, ruling.reason) == (Standing.PINNED, LAST, "calmer under load")
    page.close()


def reach(page: Any, name: str) -> None:
    """Press Tab until the element with this name has the focus."""
    names = (
        "(e => ['MAIN', 'BODY'].includes(e.tagName) ? []"
        " : [e.getAttribute('aria-label'), e.innerText, e.closest('label')?.innerText])(document.activeElement)"
    )
    for _ in range(60):
        page.keyboard.press("Tab")
        if any(name in found.split("\n") for found in page.evaluate(names) if found):
            return
    raise AssertionError(f"Tab does not reach {name!r}")


def test_the_form_fits(served: Served, context: Any, folder: Path) -> None:
    page = look(context, f"{served.url}study?study=2", scheme="dark").page
    page.get_by_text("Pin, approve or reject a plan").click()
    button = page.get_by_role("button", name="Save", exact=True)
    button.wait_for(timeout=SHOWN_MS)
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": HEIGHT})
        button.scroll_into_view_if_needed()
        keep_screenshot(page, folder / f"dashboard-form-{width}.png")
        page.wait_for_function(f"innerWidth == {width} && {OVERFLOW} <= 0 && {SCROLLED} <= 0", timeout=SHOWN_MS)
    page.close()
