"""The report's page in a browser: charts are drawn, and who looks closer at one looks closer at all."""

from pathlib import Path

import pytest

from dyn_service.nodes.board import Board
from tests.browser import browser, needs_browser
from tests.nodes.test_page import take_plant, written

pytestmark = [pytest.mark.slow, needs_browser]

COLOURS = """() => [...document.querySelectorAll('canvas')].map((canvas) => {
  const seen = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(seen.buffer)).size;
})"""
FIRST_TIMES = """() => [...document.querySelectorAll('.chart')].map((place) => place.getAttribute('data-shown'))"""


def test_charts_are_drawn_and_zoom_together(tmp_path: Path) -> None:
    board = Board()
    take_plant(board, "plant", 9)
    written(tmp_path, board)
    with browser(color_scheme="dark") as page:
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('canvas').length === 4")
        assert min(page.evaluate(COLOURS)) > 10  # a blank canvas has one colour
        assert page.evaluate(FIRST_TIMES) == ["0 2.999"] * 4
        assert page.locator("#all-of-it").is_hidden()
        page.locator("button[data-from]").first.click()  # the effort at its limit, from 1.5 to 1.8 s
        page.wait_for_function("document.querySelector('.chart').getAttribute('data-shown') !== '0 2.999'")
        assert page.evaluate(FIRST_TIMES) == ["1.4 1.9"] * 4
        page.locator("#all-of-it").click()
        assert page.evaluate(FIRST_TIMES) == ["0 2.999"] * 4
        over = page.locator(".u-over").first
        over.scroll_into_view_if_needed()
        box = over.bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 20, steps=4)
        page.mouse.up()
        begin, end = (float(number) for number in page.evaluate(FIRST_TIMES)[3].split())
        assert begin == pytest.approx(0.5 * 2.999, abs=0.02)  # a few pixels of some 350
        assert end == pytest.approx(0.75 * 2.999, abs=0.02)
        page.mouse.dblclick(box["x"] + 50, box["y"] + 20)
        assert page.evaluate(FIRST_TIMES) == ["0 2.999"] * 4
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert min(page.evaluate(COLOURS)) > 10
        assert page.errors == []


def test_it_fits_a_narrow_window(tmp_path: Path) -> None:
    board = Board()
    take_plant(board, "plant", 9)
    written(tmp_path, board)
    with browser(viewport={"width": 400, "height": 800}) as page:
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector("canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.errors == []
