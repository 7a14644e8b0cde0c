"""The admin page of a real `radix serve` in a real browser, from its first store to its end."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

playwright = pytest.importorskip("playwright.sync_api")

from playwright.sync_api import expect  # noqa: E402  # behind its check

from tests.browser import CHROMIUM, browser  # noqa: E402  # as above
from tests.service.program import Program  # noqa: E402  # as above
from tests.service.rig import ROOT, contents, keys_of  # noqa: E402  # as above

NAMES: list[object] = list(range(30))


@pytest.mark.skipif(not CHROMIUM, reason="no chromium; make deps installs it")
def test_the_page_follows_a_service_from_its_first_store_to_its_end(tmp_path: Path) -> None:
    faults: list[str] = []
    with Program(tmp_path, "--data", str(tmp_path / "data")) as run, browser() as opened:
        page = opened.new_page()
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"http://{run.told['admin']}/")
        expect(page.locator("#state")).to_have_attribute("data-state", "running")
        expect(page.locator("#tiers")).to_contain_text("no store is open")
        client = run.client()
        assert client.write(keys_of(NAMES), contents(NAMES)).all()
        client.has(keys_of([*NAMES, "x"]))
        expect(page.locator("#stores")).to_contain_text("kv 4.00 KiB", timeout=15_000)
        expect(page.locator("#figures")).to_contain_text("30 found", timeout=15_000)
        expect(page.locator("#misses")).to_contain_text("cold")
        expect(page.locator("#tenants")).to_contain_text("default")
        expect(page.locator('#tiers [data-name="disk"] svg')).to_be_visible()
        tree = page.locator("#tree")
        tree.get_by_role("button", name="open").first.click()
        rows = tree.locator(":scope > ul > li > ul > li")
        expect(rows).to_have_count(26)
        expect(rows.filter(has_text="disk").first).to_be_visible()
        lease = client.lease(keys=keys_of(NAMES))
        run.process.send_signal(signal.SIGTERM)
        expect(page.locator("#state")).to_have_attribute("data-state", "draining", timeout=15_000)
        lease.release()
        client.close()
        assert run.process.wait(30) == 0
        expect(page.locator("#problem")).to_contain_text("does not answer", timeout=15_000)
        assert faults == []


def test_top_goes_on_in_a_terminal_until_it_is_interrupted(tmp_path: Path) -> None:
    with Program(tmp_path) as run, run.client() as client:
        client.write(keys_of(NAMES), contents(NAMES))
        ours, theirs = pty.openpty()
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "radix.cli", "top", "--every", "0.2"),
                *("--admin", run.told["admin"]),
            ],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"},
        )
        os.close(theirs)
        try:
            shown = b""
            deadline = time.monotonic() + 30
            while shown.count(b"running") < 3:  # it draws again and again
                assert time.monotonic() < deadline, shown[-2000:]
                if select.select([ours], [], [], 1)[0]:
                    shown += os.read(ours, 65536)
            assert b"host" in shown and b"default" in shown
            child.send_signal(signal.SIGINT)
            while select.select([ours], [], [], 5)[0]:
                try:
                    if not os.read(ours, 65536):
                        break
                except OSError:  # the other side of a terminal that is closed
                    break
            assert child.wait(20) == 130
        finally:
            child.kill()
            child.wait()
            os.close(ours)
