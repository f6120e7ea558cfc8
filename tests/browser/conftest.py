"""A browser for the report's page: the Chromium or Chrome of this machine; without one these tests are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
HANGS_MS = 600_000.0  # also on a machine that other work holds up


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser on this machine ({', '.join(NAMES)})")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        api.expect.set_options(timeout=HANGS_MS)
        browser = playwright.chromium.launch(executable_path=path, timeout=HANGS_MS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page from disk; what it asked the network for or complained about fails the test in the end."""
    odd: list[str] = []
    contexts = []

    def open_page(file: Path, **options: object) -> Page:
        def asked(request: Request) -> None:
            if request.url.partition("#")[0] != file.as_uri():
                odd.append(f"asked for {request.url}")

        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(HANGS_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", asked)
        page.on("console", lambda said: odd.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: odd.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (odd.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not odd
