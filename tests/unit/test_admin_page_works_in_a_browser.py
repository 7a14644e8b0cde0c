"""The admin page in a real browser: it shows the numbers of the service, follows them, opens the
tree, says when the service is gone, and fits narrow screens in light and in dark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api")

from playwright.sync_api import Browser, Page, expect  # noqa: E402  # behind its check

from radix.errors import ClosedError  # noqa: E402  # as above
from tests.adminrig import Rig, serving  # noqa: E402  # as above
from tests.browser import CHROMIUM, browser  # noqa: E402  # as above

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no chromium; make deps installs it")


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with serving(tmp_path, sample_s=0.1) as made:
        for number in range(30):
            made.serve(number)
        made.serve(0, tokens=180, branch=1)
        made.put(60)
        yield made


@pytest.fixture
def faults() -> list[str]:
    """What the page complained about; empty at the end of each test."""
    return []


@pytest.fixture
def page(opened: Browser, rig: Rig, faults: list[str]) -> Iterator[Page]:
    made = opened.new_page(viewport={"width": 1280, "height": 900})
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda message: faults.append(message.text))
    made.goto(rig.url)
    expect(made.locator("#state")).to_have_attribute("data-state", "running")
    yield made
    made.close()


def test_it_shows_what_the_service_says(page: Page, faults: list[str]) -> None:
    figures = page.locator("#figures")
    expect(figures).to_contain_text("tokens asked for")
    expect(figures).to_contain_text("3,180")
    expect(figures).to_contain_text("blocks asked for")
    expect(page.locator("#facts")).to_contain_text("/run/radix.sock")
    expect(page.locator("#misses")).to_contain_text("cold")
    expect(page.locator("#misses .bar").first).to_be_visible()
    expect(page.locator("#tenants")).to_contain_text("acme")
    expect(page.locator("#tenants")).to_contain_text("2.00 MiB")
    expect(page.locator("#stores tbody tr")).to_have_count(2)
    for tier in ("host", "disk"):
        expect(page.locator(f'#tiers [data-name="{tier}"] svg polyline')).to_have_count(1)
    assert faults == []


def test_it_follows_the_service(page: Page, rig: Rig, faults: list[str]) -> None:
    rig.serve(500, tokens=160)
    expect(page.locator("#figures")).to_contain_text("3,340", timeout=15_000)
    # A ratio is of what was asked between two samples: before, all may have been asked in one.
    expect(page.locator("#ratio svg").first).to_be_visible(timeout=15_000)
    rig.state = "draining"
    expect(page.locator("#state")).to_have_attribute("data-state", "draining", timeout=15_000)
    assert faults == []


def test_the_tree_opens_down_to_the_last_page(page: Page, faults: list[str]) -> None:
    page.select_option("#tree-store", "prompts")
    tree = page.locator("#tree")
    expect(tree).to_contain_text("llama-3.1-8b")
    tree.get_by_role("button", name="open").first.click()
    rows = tree.locator(":scope > ul > li > ul > li")
    expect(rows).to_have_count(26)  # a piece of 25, and a button for more
    tree.get_by_role("button", name="25 more").click()
    expect(rows).to_have_count(30)
    expect(rows.filter(has_text="host 6").first).to_be_visible()
    parent = rows.filter(has=page.get_by_role("button", name="open"))
    expect(parent).to_have_count(1)
    parent.get_by_role("button", name="open").click()
    expect(parent.locator("li")).to_have_count(2)
    expect(parent.locator("li").filter(has_text="pages 4–10")).to_be_visible()
    page.select_option("#tree-store", "keys")
    tree.get_by_role("button", name="open").first.click()
    expect(rows.first).to_contain_text("host")
    assert faults == []


def test_it_says_when_the_service_is_gone_and_when_it_is_back(page: Page, rig: Rig) -> None:
    rig.broken = ClosedError("the service has ended")
    expect(page.locator("#problem")).to_contain_text("does not answer", timeout=15_000)
    expect(page.locator("#state")).to_have_attribute("data-state", "unreachable")
    expect(page.locator("#figures")).to_contain_text("3,180")  # what was known stays
    rig.broken = None
    expect(page.locator("#problem")).to_be_hidden(timeout=15_000)


def test_a_reading_is_shown_under_the_pointer(page: Page) -> None:
    chart = page.locator('#tiers [data-name="host"] svg')
    expect(chart).to_be_visible()
    chart.hover()
    expect(page.locator('#tiers [data-name="host"] .reading')).to_contain_text("MiB")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 768, 1440])
def test_it_fits_any_screen(
    opened: Browser, rig: Rig, scheme: str, width: int, tmp_path: Path
) -> None:
    """Nothing sticks out, and texts stand out from what lies behind them (WCAG: 4.5 to 1)."""
    made = opened.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    try:
        made.goto(rig.url)
        expect(made.locator("#stores tbody tr")).to_have_count(2)
        assert made.evaluate("document.documentElement.scrollWidth") <= width
        for text, ground in (("--ink", "--card"), ("--soft", "--card"), ("--ink", "--page")):
            assert made.evaluate(_CONTRAST, [text, ground]) >= 4.5, (text, ground)
        folder = Path(os.environ.get("RADIX_SHOTS", tmp_path))
        shot = folder / f"admin-{scheme}-{width}.png"
        made.screenshot(path=str(shot), full_page=True)
        assert shot.stat().st_size > 10_000
    finally:
        made.close()


_CONTRAST = """([text, ground]) => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    const parts = [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255)
      .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const [high, low] = [light(text), light(ground)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
}"""
