"""A browser without a window. Tests that need it are skipped without Chromium or the group `test-browser`."""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="no chromium (Debian: apt install chromium) or no playwright (pip install --group test-browser)",
)
SOFTWARE_GL = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")


@contextmanager
def browser(**page: Any) -> Iterator[Any]:
    """A page of a fresh browser, with WebGL by the processor; what goes wrong in its scripts is in `page.errors`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *SOFTWARE_GL])
        try:
            tab = chromium.new_page(**{"viewport": {"width": 1280, "height": 900}, **page})
            tab.errors = []
            tab.on("pageerror", lambda error: tab.errors.append(str(error)))
            yield tab
        finally:
            chromium.close()
