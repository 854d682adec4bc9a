"""Design loads against hand calculation, against `constraint_forces`, and against their own extreme states."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import InvalidArgumentError
from dyn_service.studies.joint_loads import CAUSES, MEASURES, Loads, design_loads, duty_cycle, readable
from tests.browser import browser, needs_browser
from tests.graph.report.test_page import charts_of, numbers, times_of
from tests.phrases import naming

for _module in ("xarray", "dask.array", "zarr"):
    pytest.importorskip(_module, reason="the extra `studies` is not installed: pip install '.[studies]'")

G = 9.81


@pytest.fixture(scope="module")
def arm() -> Robot:
    return arm_about("0 0 1")


def arm_about(axis: str) -> Robot:
    """Two links of 1 m in the horizontal plane with point masses of 3 and 2 kg at their ends; the axes are vertical."""

    def link(name: str, mass: float) -> str:
        point = '<inertia ixx="0" iyy="0" izz="0" ixy="0" ixz="0" iyz="0"/>'
        body = f'<inertial><origin xyz="1 0 0"/><mass value="{mass}"/>{point}</inertial>'
        return f'<link name="{name}">{body}</link>'

    def joint(name: str, parent: str, child: str, x: float, damping: float) -> str:
        return (
            f'<joint name="{name}" type="revolute"><parent link="{parent}"/><child link="{child}"/>'
            f'<origin xyz="{x} 0 0"/><axis xyz="{axis}"/><limit lower="-3" upper="3" effort="99" velocity="9"/>'
            f'<dynamics damping="{damping}"/></joint>'
        )

    return Robot.from_text(
        f'<robot name="arm"><link name="base"/>{link("upper", 3)}{link("lower", 2)}'
        f"{joint('shoulder', 'base', 'upper', 0, 0.5)}{joint('elbow', 'upper', 'lower', 1, 0.0)}</robot>"
    )


def test_by_hand(arm: Robot) -> None:
    w, alpha = 2.0, 3.0
    measures = Loads(arm, {})({"q": np.zeros(2), "v": np.array([w, 0.0]), "a": np.array([alpha, 0.0])})
    # shoulder: 3 kg at 1 m and 2 kg at 2 m; elbow: 2 kg at 2 m from the shoulder, 1 m from itself
    radial, tangential = (3 + 2 * 2) * w**2, (3 + 2 * 2) * alpha
    assert np.allclose(
        measures["load"],
        [
            [np.hypot(radial, tangential), 5 * G, (3 + 4) * G, (3 + 2 * 4) * alpha + 0.5 * w],
            [np.hypot(4 * w**2, 4 * alpha), 2 * G, 2 * G, 2 * 2 * alpha],
        ],
    )
    assert np.allclose(measures["gravity"], [[0, 5 * G, 7 * G, 0], [0, 2 * G, 2 * G, 0]])
    assert np.allclose(measures["velocity"], [[radial, 0, 0, 0], [4 * w**2, 0, 0, 0]])
    assert np.allclose(measures["inertia"], [[tangential, 0, 0, 11 * alpha], [4 * alpha, 0, 0, 4 * alpha]])
    assert np.allclose(measures["friction"], [[0, 0, 0, 0.5 * w], [0, 0, 0, 0]])
    assert not measures["external"].any()
    push = [{"link": "lower", "force": [0.0, 5.0, 0.0], "point": [1.0, 0.0, 0.0]}]
    pushed = Loads(arm, {"wrenches": push})({"q": np.zeros(2), "v": np.zeros(2), "a": np.zeros(2)})
    assert np.allclose(pushed["external"], [[5, 0, 0, -10], [5, 0, 0, -5]])
    with pytest.raises(InvalidArgumentError, match=naming("options", "'joint'", "joints")):
        Loads(arm, {"joint": []})


def test_against_the_constraint_forces() -> None:
    robot = Robot.from_urdf("urdf/panda.urdf", mimic=False)
    rng = np.random.default_rng(0)
    q, v, a = rng.normal(size=(3, 5000, robot.nv))
    loads = Loads(robot, {"joints": [*robot.joint_names, "panda_hand_joint"]})
    whole, causes = loads._split({"q": q, "v": v, "a": a})
    for name in ("force", "moment", "drive"):
        assert np.allclose(sum(getattr(part, name) for part in causes.values()), getattr(whole, name))
    tau = robot.inverse_dynamics(q, v, a)
    assert np.array_equal(whole.drive[:, :-1], tau)
    constraint = robot.constraint_forces(q, v, tau, joints=loads.joints).constraint
    radial, axial, tilting = loads._vectors(whole)
    expected = np.concatenate([tilting, radial + axial[..., None] * loads.axes], axis=-1)
    expected[:, -1, :3] = whole.moment[:, -1]  # a fixed joint carries its torsion
    scale = np.abs(constraint).max()
    assert np.abs(expected - constraint).max() < 1e-9 * scale  # tau -> a -> wrench loses the digits of forward dynamics
    shares = loads.shares({"q": q[0], "v": v[0], "a": a[0]})
    assert np.allclose(sum(shares.values()), loads._measures(whole)[0])


def test_the_page_and_its_extremes(arm: Robot, tmp_path: Path) -> None:
    vary = {"q": {"uniform": "limits"}, "v": {"uniform": [-2, 2]}, "a": {"uniform": [-5, 5]}}
    vary |= {"payload.lower.mass": {"uniform": [0.1, 1.0]}, "payload.lower.com": {"constant": [1.0, 0.0, 0.0]}}
    report = design_loads(arm, vary, samples={"sample": {"count": 20_000}}, joints=["shoulder", "elbow"])
    page = report.write(tmp_path / "page")
    table = list(csv.DictReader((page.parent / "loads.csv").read_text("utf-8").splitlines()))
    assert [(row["joint"], row["measure"]) for row in table] == [
        (j, m) for j in ("shoulder", "elbow") for m in MEASURES
    ]
    for row in table:  # the state of the load, one number in each cell
        state = report.study.state(int(row["state"]))
        for key, unit in (("q", "rad"), ("v", "rad/s"), ("a", "rad/s^2")):
            cells = [float(row[f"{key} {joint} [{unit}]"]) for joint in ("shoulder", "elbow")]
            assert np.allclose(cells, state[key], rtol=1e-8)
    states = report.study.plan.block([slice(0, 20_000)])
    measures = Loads(arm, {})(states)["load"]
    for row in report.rows:
        j, m = ("shoulder", "elbow").index(row["joint"]), MEASURES.index(row["measure"])
        assert abs(row["largest"]) == np.abs(measures[:, j, m]).max()
        assert np.isclose(sum(row[cause] for cause in CAUSES), row["largest"])
        assert np.isclose(row["rms"], np.sqrt((measures[:, j, m] ** 2).mean()))
        loads_at, share = report.curves[row["joint"], row["measure"]]
        assert np.all(np.diff(share) >= 0)
        assert np.isclose(share[-1], 1.0)
        load = np.abs(measures[:, j, m])
        for k in range(0, len(loads_at), 9):  # of states with at least this load, which may round
            assert abs(share[k] - (load >= loads_at[k]).mean()) <= 2 / 20_000
        middle = np.searchsorted(share, 0.5)
        assert abs(loads_at[middle] - np.median(np.abs(measures[:, j, m]))) < 2 * (loads_at[0] - loads_at[-1]) / 100
    assert sorted(path.name for path in page.parent.iterdir()) == ["index.html", "loads.csv"]
    text = page.read_text("utf-8")
    assert "<span>states <b>20,000</b></span>" in text
    assert "<span>states without finite loads <b>none</b></span>" in text
    for row in report.rows:
        for value in (row["largest"], row["cubic_mean"], row["gravity"], row["inertia alone"]):
            assert f">{report._text(value)}</td>" in text
    charts = charts_of(text)
    assert [chart["label"] for chart in charts] == ["radial [N]", "axial [N]", "tilting [N m]", "drive [N m]"] * 2
    for chart, (loads_at, share) in zip(charts, report.curves.values(), strict=True):
        assert np.array_equal(numbers(times_of(charts, chart)), (100.0 * share).astype("<f4"))  # a curve without gaps
        assert np.isfinite(numbers(chart["lines"][0]["y"])).all()
        assert numbers(chart["lines"][0]["y"])[-1] == pytest.approx(loads_at[-1], abs=1e-5)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_the_page_fits_a_screen_in_light_and_dark(arm: Robot, tmp_path: Path, width: int) -> None:
    vary = {"q": {"uniform": "limits"}, "v": {"uniform": [-2, 2]}, "a": {"uniform": [-5, 5]}}
    page_file = design_loads(arm, vary, samples={"sample": {"count": 500}}).write(tmp_path)
    grounds = []
    for scheme in ("light", "dark"):
        with browser(viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
            page.goto(page_file.as_uri())
            page.wait_for_function("document.querySelectorAll('canvas').length > 0")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            overflow = (
                "() => [...document.querySelectorAll('.wide-table')].map((box) => box.scrollWidth - box.clientWidth)"
            )
            assert set(page.evaluate(overflow)) == {0}
            grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert page.errors == []
    assert grounds[0] != grounds[1]


def test_a_negative_load_is_drawn_by_its_magnitude(tmp_path: Path) -> None:
    """Axes that point down carry the weight with a negative axial force: its chart is that of one
    that points up.
    """
    vary = {"q": {"uniform": "limits"}, "v": {"uniform": [-2, 2]}, "a": {"uniform": [-5, 5]}}
    samples = {"sample": {"count": 300}}
    pointing_down, pointing_up = (design_loads(arm_about(axis), vary, samples=samples) for axis in ("0 0 -1", "0 0 1"))
    charts_down = charts_of(pointing_down.write(tmp_path / "down").read_text("utf-8"))
    charts_up = charts_of(pointing_up.write(tmp_path / "up").read_text("utf-8"))
    for k, row in enumerate(pointing_down.rows):
        if row["measure"] == "axial":
            assert row["largest"] < 0.0
            assert charts_down[k]["lines"] == charts_up[k]["lines"]


def test_a_duty_cycle(arm: Robot) -> None:
    t = np.linspace(0.0, 10.0, 1001)
    v = np.stack([np.where(t < 5, 1.0, 3.0), np.zeros(1001)], axis=1)
    motion = {"t": t, "q": np.zeros((1001, 2)), "v": v, "a": np.zeros((1001, 2))}
    shoulder, elbow = duty_cycle(arm, motion)
    # 0.5 N m of damping at 1 rad/s for 5 rad, 1.5 at 3 rad/s for 15 rad
    assert np.isclose(
        shoulder["drive"], ((5 * 0.5**3 + 15 * 1.5**3) / 20) ** (1 / 3), rtol=2e-3
    )  # of the step's sample
    assert np.isclose(shoulder["axial"], 5 * G)
    assert np.isnan(elbow["drive"])
    assert np.isclose(duty_cycle(arm, motion, exponent=400.0)[0]["axial"], 5 * G)
    for change, words in (
        ({"t": t[::-1]}, ["motion.t", "increase"]),
        ({"t": t[:1], "q": np.zeros((1, 2)), "v": v[:1], "a": v[:1]}, ["motion.t", "two times"]),
        ({"t": t[:500]}, ["motion.q", "(500, 2)", "(1001, 2)"]),
        ({"v": np.nan * v}, ["motion.v", "finite", "not"]),
    ):
        with pytest.raises(InvalidArgumentError, match=naming(*words)):
            duty_cycle(arm, {**motion, **change})
    for exponent in (0.0, -3.0, np.nan, np.inf):
        with pytest.raises(InvalidArgumentError, match=naming("exponent", "positive, finite", f"{exponent:g}")):
            duty_cycle(arm, motion, exponent=exponent)


def test_rounding_errors_do_not_look_like_loads(tmp_path: Path) -> None:
    robot = Robot.from_urdf("urdf/panda.urdf")
    vary = {"q": {"uniform": "limits"}, "v": {"constant": 0.0}, "a": {"constant": 0.0}}
    report = design_loads(robot, vary, samples={"sample": {"count": 64}}, joints=["panda_joint1", "panda_joint2"])
    drive = next(row for row in report.rows if (row["joint"], row["measure"]) == ("panda_joint1", "drive"))
    assert 0.0 < abs(drive["largest"]) < 1e-12  # the axis is vertical
    table = list(csv.DictReader(report.csv().splitlines()))
    small = [row for row in table if row["joint"] == "panda_joint1" and row["measure"] in ("radial", "drive")]
    assert [(row["largest"], row["gravity"], row["rms"]) for row in small] == [("0", "0", "0")] * 2
    assert any(float(row["largest"]) > 100.0 for row in table)
    assert readable([57.0], [np.nan])(-8.7e-15) == "0"
    assert [readable([1e-13, 0.0])(x) for x in (1e-13, np.nan)] == ["1e-13", "nan"]
    page = report.write(tmp_path).read_text("utf-8")
    assert "e-1" not in re.sub(r"<script.*?</script>", "", page.partition("<table")[2], flags=re.DOTALL)


def test_recordings_and_states_without_loads(arm: Robot) -> None:
    at_rest = {name: {"constant": 0.0} for name in ("v", "a")}
    with pytest.raises(InvalidArgumentError, match=naming("vary: no state has finite loads", "1")):
        design_loads(arm, {"q": {"constant": np.nan}, **at_rest})
    with pytest.raises(InvalidArgumentError, match=naming("motion: no array of the recording called 'a'")):
        duty_cycle(arm, {name: np.zeros((1, 2)) for name in ("t", "q", "v")})
