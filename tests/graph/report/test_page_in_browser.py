"""The report's page in a browser: charts are drawn, and zooming in one zooms all."""

from pathlib import Path

import numpy as np
import pytest

from dyn_service.graph.launch.report import Shown
from dyn_service.graph.middleware.node_kind import Section
from dyn_service.graph.middleware.telemetry import TelemetryStore
from dyn_service.graph.report.charts import Card, Chart, Line
from dyn_service.graph.report.verdicts import Verdict
from tests.browser import browser, needs_browser
from tests.graph.report.test_page import page_of, take_plant, write_page

pytestmark = [pytest.mark.slow, needs_browser]

COLOURS = """() => [...document.querySelectorAll('canvas')].map((canvas) => {
  const seen = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(seen.buffer)).size;
})"""
FIRST_TIMES = """() => [...document.querySelectorAll('.chart')].map((place) => place.getAttribute('data-shown'))"""


def test_charts_are_drawn_and_zoom_together(tmp_path: Path) -> None:
    store = TelemetryStore()
    take_plant(store, "plant", 9)
    write_page(tmp_path, store)
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
        overlay = page.locator(".u-over").first
        overlay.scroll_into_view_if_needed()
        box = overlay.bounding_box()
        page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 20, steps=4)
        page.mouse.up()
        begin, end = (float(number) for number in page.evaluate(FIRST_TIMES)[3].split())
        assert begin == pytest.approx(0.5 * 2.999, abs=0.02)  # a few pixels of some 350
        assert end == pytest.approx(0.75 * 2.999, abs=0.02)
        page.mouse.dblclick(box["x"] + 50, box["y"] + 20)
        page.wait_for_function("document.querySelector('.chart').getAttribute('data-shown') === '0 2.999'")
        assert page.evaluate(FIRST_TIMES) == ["0 2.999"] * 4
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "light"
        assert min(page.evaluate(COLOURS)) > 10
        assert page.errors == []


def test_it_fits_a_narrow_window(tmp_path: Path) -> None:
    store = TelemetryStore()
    take_plant(store, "plant", 9)
    write_page(tmp_path, store)
    with browser(viewport={"width": 390, "height": 800}) as page:
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_selector("canvas")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("document.querySelector('.nodes').scrollWidth") <= 390
        assert page.errors == []


CUT = """() => [...document.querySelectorAll('.wide-table')].map((box) => box.scrollWidth - box.clientWidth)"""
LEGENDS = """() => [...document.querySelectorAll('.chart')].map((chart) => {
  const legend = chart.querySelector('.u-legend');
  const labels = [...legend.querySelectorAll('.u-label')].filter((label) => label.offsetWidth > 0);
  const inside = labels.every((label) => label.getBoundingClientRect().right <= chart.getBoundingClientRect().right);
  return [legend.offsetHeight / chart.clientHeight, inside, labels.length];
})"""


@pytest.mark.parametrize("width", [400, 700, 800, 1000, 1200, 1600])
def test_no_table_is_cut_and_no_legend_takes_a_third_of_its_chart(tmp_path: Path, width: int) -> None:
    """With the columns of a real launch, a chart of a joint in a card, and every mode of the page."""
    t = np.linspace(0.0, 3.0, 500)
    lines = [Line(name, np.sin(k + t)) for k, name in enumerate(("reference", "measured", "commanded"))]
    charts = [Chart(t, lines, "position [rad]"), Chart(t, lines[:1], "error [mrad]", height=110)]
    section = Section({}, charts={"Tracking": [Card(f"panda_joint{k}", charts) for k in range(3)]})
    names = ("server", "plant", "controller")
    processes = tuple(
        {"name": name, "state": "stopped", "restarts": 0, "cpu_s": 12.34, "cpu_share": 0.21, "parameters": {},
         "causes": ["exited with status 0"], "faults": [], "clean": True} for name in names
    )  # fmt: skip
    cells = {
        "rate": "1000 Hz", "notes": "109 overruns, 1 stops, braked (released)", "round trip p50/p99": "280/3897 us",
        "missed": "104", "lost": "0", "error rms/max": "2.7e-05/1.9e-04",
    }  # fmt: skip
    verdicts = [Verdict("lateness", 4.92, 10.0, "ms", "99.9 % of the periods; the latest 5.95 ms", subject="timing"),
                Verdict("tracking error", None, 0.05, "rad", "the plant's motion was not recorded")]  # fmt: skip
    page_text = page_of([Shown("plant", "tracking", section)], processes, dict.fromkeys(names, cells), verdicts)
    (tmp_path / "index.html").write_text(page_text, "utf-8")
    with browser(viewport={"width": width, "height": 1000}) as page:
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('canvas').length === 6")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CUT) == [0, 0]
        legends = page.evaluate(LEGENDS)
        assert [count for _, _, count in legends] == [3, 1] * 3
        assert all(fits for _, fits, _ in legends)
        assert max(share for share, _, _ in legends) < 1 / 6  # one line of text
        page.locator(".u-over").first.hover()
        page.wait_for_function("document.querySelector('.u-legend').innerText.includes('time')")
        dots = page.evaluate("() => [...document.querySelectorAll('.verdicts .state')].map("
                             "(cell) => getComputedStyle(cell, '::before').color)")  # fmt: skip
        assert dots[0] != dots[1]  # not judged, then met
        assert page.errors == []


LEFT_EDGES = """() => {
  window.leftEdges = [];
  const fillText = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const width = this.measureText(text).width;
    const left = this.textAlign === 'right' ? x - width : this.textAlign === 'center' ? x - width / 2 : x;
    const turned = this.getTransform().b !== 0;  // the label of the axis
    if (!turned) window.leftEdges.push([text, left + this.getTransform().e]);
    return fillText.apply(this, arguments);
  };
}"""


def test_charts_below_the_window_are_drawn_and_no_tick_is_cut(tmp_path: Path) -> None:
    """As a screenshot of the whole page has them. Ticks have a sign and up to six digits."""
    t = np.linspace(0.0, 3.0, 500)
    charts = [Chart(t, [Line("a", size * np.sin(k + t) + offset)], "y [m]", height=110)
              for k in range(20) for size, offset in [(1e-4, -0.1234), (5e4, -2e5), (1e-7, 0.0)]]  # fmt: skip
    section = Section({}, charts={"h": [Card(str(k), [chart]) for k, chart in enumerate(charts)]})
    (tmp_path / "index.html").write_text(page_of([Shown("n", "p", section)]), "utf-8")
    with browser(viewport={"width": 1280, "height": 400}) as page:
        page.add_init_script(f"({LEFT_EDGES})()")
        page.goto((tmp_path / "index.html").as_uri())
        page.wait_for_function("document.querySelectorAll('canvas').length === 60")
        page.wait_for_function("window.leftEdges.length > 180")
        edges = page.evaluate("window.leftEdges")
        assert min(left for _, left in edges) >= 0.0
        assert {"-0.1234", "-150000", "5e-8"} & {text for text, _ in edges}
        assert page.errors == []
