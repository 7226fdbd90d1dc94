"""Headless Chromium on pages from disk, with the network off: what they show, and what goes wrong in them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser; the test is skipped where there is none."""
    path = executable()
    if path is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, from gradlab[test]")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


class Opened:
    """A page that is open. `wrong`: errors in its console, what it threw, and what it asked a network for."""

    def __init__(self, page: Page) -> None:
        self.page, self.wrong = page, list[str]()
        page.on("console", self.console)
        page.on("pageerror", lambda error: self.wrong.append(f"threw: {error}"))
        page.on("request", self.request)

    def console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "http://127.0.0.1:")):
            self.wrong.append(f"asked for {request.url}")

    def text(self, selector: str) -> str:
        """What is read there."""
        return self.page.inner_text(selector)

    def shot(self, path: Path, whole: bool = True) -> None:
        self.page.screenshot(path=str(path), full_page=whole)


@contextmanager
def opened(
    browser: Browser, place: Path | str, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Opened]:
    """A page from disk, with the network off; or of a local server, by its address."""
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        offline=isinstance(place, Path),
        permissions=["clipboard-read", "clipboard-write"],
    )
    try:
        seen = Opened(context.new_page())
        seen.page.set_default_timeout(10_000)
        seen.page.goto(place.resolve().as_uri() if isinstance(place, Path) else place)
        yield seen
    finally:
        context.close()
