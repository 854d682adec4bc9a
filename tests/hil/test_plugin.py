"""The plug-in in pytest runs of its own: what it costs who does not ask for it, and what who does gets.

Each such run is a process: they are few, and each has many tests in it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dyn_service.errors import InvalidArgumentError
from dyn_service.hil.bench import RobotCache, Setup, merged, open_bench
from dyn_service.hil.reporting import Reporting, file_name
from dyn_service.hil.signals import Record
from tests.conftest import ROOT
from tests.phrases import naming

PLUGIN = ("-p", "dyn_service.hil.plugin", "-p", "no:cacheprovider")
INI = f"""
[pytest]
hil_launch = {ROOT / "launch" / "ur5e_computed_torque.launch.yaml"}
addopts = --strict-markers --strict-config -W error
"""
TESTS = (
    f"""
import pytest
from dyn_service.hil import *

pytestmark = pytest.mark.hil(arguments={{"robot": r"{ROOT / "urdf" / "double_pendulum.urdf"}"}})
"""
    + """
@pytest.mark.requirement("REQ-2", "REQ-12")
def test_good(run):
    run(0.2).check.tracking().below(1e-3)

@pytest.mark.requirement("REQ-12")
def test_bad(run):
    run(0.2, faults=[Loss(1.0, from_s=0.1)]).check.under_command().at_least(0.99)

def test_biased(run):
    done = run(0.3, faults=[Bias(0.02, channel="states", joints=["joint_2"])])
    done.check.tracking("joint_2").below(1e-3)

def test_judging_nothing(run):
    check = run(0.2).check
    check.effort().within_limits()
    assert check.tracking().rms.value < 1e-3
    check.tracking()
    check.energy("joint_1")

@pytest.mark.requirement("REQ-3")
@pytest.mark.parametrize("x", ["<b>", 2])
def test_without_a_run(x):
    assert x != 2, "it is <two>"

@pytest.fixture
def broken():
    raise RuntimeError("no bench")

@pytest.mark.requirement("REQ-4")
def test_error(broken):
    pass

def test_of_nobody():
    pass

def test_own(plant, clock):
    clock.run(0.1)
    plant.check.effort().below(1e-9)

def test_parts(clock, plant, controller, server, robot):
    clock.run(0.3)
    assert plant.state.mode == "active"
    assert server.fingerprint == robot.fingerprint == plant.state.fingerprint
    plant.check.tracking().below(1e-3)
    controller.kill()
    clock.run_until(0.6)
    assert controller.ended == "controller: it was killed"
    plant.check.safe_stop(0.3).below(0.2)
    assert clock.now_s == pytest.approx(0.6)
    assert len(plant.record.t) == 600
    with pytest.raises(AssertionError):
        plant.check.stops().at_most(0)

def test_faults_later(clock, plant):
    clock.run(0.2)
    plant.inject(Loss(1.0))
    clock.run(0.2)
    assert plant.state.cause == "missed"

def test_seeds(run):
    noise = [Noise(1e-4, 1e-3, channel="states")]
    one, two, other = run(0.1, faults=noise), run(0.1, faults=noise, seed=7), run(0.1, faults=noise, seed=8)
    assert one.record.same_as(two.record) is None  # --hil-seed is 7
    assert one.record.same_as(other.record) is not None
    assert one.seed == 7

@pytest.mark.hil(controller={"rate_hz": 100.0}, plant={"control_rate_hz": 100.0})
class TestSlow:
    def test_class(self, run):
        assert run(0.1).record.control_s == pytest.approx(0.01)

    @pytest.mark.hil(controller={"rate_hz": 50.0})
    def test_nearest(self, run):
        assert run(0.1).record.control_s == pytest.approx(0.02)

@pytest.mark.hil(controller={"rate": 1})
def test_misspelt(run):
    run(0.1)

@pytest.mark.hil(kontroller={})
def test_unknown_part(run):
    run(0.1)

@pytest.mark.hil("panda_computed_torque")
def test_without_its_name(run):
    run(0.1)
"""
)
PASSED = {
    "test_good", "test_without_a_run[<b>]", "test_of_nobody", "test_parts", "test_faults_later", "test_seeds",
    "test_class", "test_nearest",
}  # fmt: skip
FAILED = {"test_bad", "test_biased", "test_without_a_run[2]", "test_own", "test_misspelt", "test_judging_nothing"}
ERRORS = {"test_error", "test_unknown_part", "test_without_its_name"}


def session(folder: Path, *options: str) -> str:
    """What a pytest run in the folder prints."""
    program = [sys.executable, "-m", "pytest", *PLUGIN, *options]
    run = subprocess.run(
        program, capture_output=True, text=True, cwd=folder, timeout=250, env={**os.environ, "COLUMNS": "300"}
    )
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a session of all tests above, and what it printed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "pytest.ini").write_text(INI)
    (folder / "test_arm.py").write_text(TESTS)
    output = session(folder, "--hil-report", "report", "--junitxml", "junit.xml", "--hil-seed", "7")
    return folder, output


@pytest.fixture(scope="module")
def cases(done: tuple[Path, str]) -> dict[str, ElementTree.Element]:
    """By test, its element of JUnit's file."""
    assert (done[0] / "junit.xml").exists(), done[1]
    return {case.get("name"): case for case in ElementTree.parse(done[0] / "junit.xml").iter("testcase")}


def test_it_costs_nothing_where_no_project_asks_for_it(tmp_path: Path) -> None:
    """Only the plug-in's own module and the package's front door are loaded, and no fixture takes a name."""
    (tmp_path / "test_it.py").write_text("def test_fixtures(run): pass")
    program = (
        "import pytest, sys\n"
        f"status = pytest.main([*{PLUGIN!r}, '--strict-markers', '-q'])\n"
        "loaded = sorted(name for name in sys.modules if name.startswith('dyn_service'))\n"
        "heavy = {'numpy', 'zmq', 'msgspec', 'casadi', 'llvmlite', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "print('LOADED', int(status), loaded, heavy)"
    )
    program = f"import sys; sys.modules['hypothesis'] = None\n{program}"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=240,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert "LOADED 1 ['dyn_service', 'dyn_service.hil', 'dyn_service.hil.plugin'] set()" in run.stdout, run.stdout
    assert "fixture 'run' not found" in run.stdout
    assert "'run' is a fixture of dyn_service.hil where pytest.ini names a launch file" in run.stdout


def test_what_passes_and_what_does_not(done: tuple[Path, str], cases: dict[str, ElementTree.Element]) -> None:
    cases_by_kind = {
        kind: {name for name, case in cases.items() if case.find(kind) is not None} for kind in ("failure", "error")
    }
    assert cases_by_kind == {"failure": FAILED, "error": ERRORS}, done[1]
    assert set(cases) == PASSED | FAILED | ERRORS


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ("test_biased", r"AssertionError: joint_2: tracking error 0.02"),
        ("test_misspelt", "test: rate:1: parameter 'rate': unknown key 'rate'; did you mean 'rate_hz'?"),
        (
            "test_unknown_part",
            "marker hil: unknown part 'kontroller': expected launch, arguments, plant, controller; did you mean",
        ),
        ("test_own", "effort "),
        ("test_judging_nothing", "tracking error, energy: measured, but nothing is asserted of it: expected `below`"),
    ],
)
def test_sentences(cases: dict[str, ElementTree.Element], test: str, sentence: str) -> None:
    [failure] = [element for element in cases[test] if element.tag in ("failure", "error")]
    assert sentence in failure.get("message")
    for file in ("measures.py", "bench.py", "plan.py"):
        assert file not in failure.text  # the test's own line is what one wants to see


def test_properties_of_junit(cases: dict[str, ElementTree.Element]) -> None:
    properties = {
        name: [(element.get("name"), element.get("value")) for element in case.iter("property")]
        for name, case in cases.items()
    }
    assert properties["test_good"][:2] == [("requirement", "REQ-2"), ("requirement", "REQ-12")]
    [(name, value)] = properties["test_good"][2:]
    assert name.endswith("tracking error")
    assert value.endswith("allowed below 1e-3 rad; judged on 0.198 of 0.198 s")
    assert properties["test_bad"][1][0] == "share under command"
    assert properties["test_of_nobody"] == []
    assert len(properties["test_parts"]) == 3  # of all that was asserted, what was meant to fail too


def test_the_page(done: tuple[Path, str]) -> None:
    folder, output = done
    assert f"hil: report in {folder}/report/index.html" in output
    page = (folder / "report" / "index.html").read_text("utf-8")
    rows = [page.index(f"<td><b>{name}</b></td>") for name in ("REQ-2", "REQ-3", "REQ-4", "REQ-12")]
    assert rows == sorted(rows)  # 2 before 12
    verdicts = [page[row:].partition("</tr>")[0] for row in rows]
    assert [">met<" in verdict for verdict in verdicts] == [True, False, False, False]
    assert "test_good" in verdicts[3]
    assert "test_bad" in verdicts[3]
    for part in (
        "allowed at least 0.99", "RuntimeError: no bench", "&lt;b&gt;", "it is &lt;two&gt;",
        "Loss(from_s=0.1, share=1.0)", "0.3 s: controller: it was killed", "16 tests, 9 failed",
    ):  # fmt: skip
        assert part in page, part
    assert "test_of_nobody" not in page
    charts = json.loads(page.partition('id="chart-data">')[2].partition("</script>")[0])
    places = [int(part.partition('"')[0]) for part in page.split('data-chart="')[1:]]
    assert sorted(places) == list(range(len(charts)))  # each chart has one place
    broken = [chart for chart in charts if chart["alarms"]]
    assert broken


def test_recordings_of_what_failed_alone(done: tuple[Path, str]) -> None:
    recordings = sorted(path.name for path in (done[0] / "report" / "recordings").iterdir())
    assert [name.partition("-")[0] + name[name.rindex(".") :] for name in recordings] == [
        f"{test}.{kind}"
        for test in ("test_bad", "test_biased", "test_judging_nothing", "test_own")
        for kind in ("mcap", "npz")
    ]
    record = Record.load(done[0] / "report" / "recordings" / recordings[1])
    assert (len(record.t), record.changes[-1].mode) == (200, "stopped")


def test_a_bag_of_a_failure_is_read_by_others(done: tuple[Path, str]) -> None:
    """By mcap's own reader and ROS 2's decoder: neither is ours."""
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    [path], [npz] = (list((done[0] / "report" / "recordings").glob(f"test_bad-*.{kind}")) for kind in ("mcap", "npz"))
    position = Record.load(npz).signal("position", "joint_1").values
    with path.open("rb") as file:
        reader = make_reader(file, decoder_factories=[DecoderFactory()])
        messages = [(channel.topic, message) for _, channel, _, message in reader.iter_decoded_messages()]
        [metadata] = [record.metadata for record in reader.iter_metadata() if record.name == "dyn_service.hil"]
    joints = [message for topic, message in messages if topic == "/joint_states"]
    assert [message.position[0] for message in joints] == position.tolist()
    assert joints[50].header.stamp.nanosec == 50_000_000
    assert {topic for topic, _ in messages} == {"/joint_states", "/plant_state", "/joint_commands"}
    assert metadata["test"].endswith("test_bad")
    assert (metadata["seed"], "Loss(" in metadata["faults"]) == ("7", True)


def test_a_second_session_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    for name in ("tests", "recordings"):
        (tmp_path / "report" / name).mkdir(parents=True)
    for name in ("tests/old.json", "recordings/old.mcap", "recordings/old.npz", "index.html", "notes.txt"):
        (tmp_path / "report" / name).write_text("{}")
    Reporting(tmp_path / "report", is_worker=True).pytest_sessionstart()  # a worker's session begins while others run
    assert (tmp_path / "report" / "index.html").exists()
    Reporting(tmp_path / "report", is_worker=False).pytest_sessionstart()
    assert {path.name for path in (tmp_path / "report").rglob("*.*")} == {"notes.txt"}
    Reporting(tmp_path / "new", is_worker=False).pytest_sessionstart()
    Reporting(tmp_path / "new", is_worker=False).pytest_sessionfinish()
    assert "0 tests" in (tmp_path / "new" / "index.html").read_text("utf-8")


@pytest.mark.parametrize(
    "mark", [{"args": ()}, {"args": ("",)}, {"args": (12,)}, {"args": (), "kwargs": {"name": "R"}}]
)
def test_a_requirement_without_a_name_is_in_no_report(request: pytest.FixtureRequest, mark: dict) -> None:
    request.node.own_markers.append(pytest.Mark("requirement", mark["args"], mark.get("kwargs", {}), _ispytest=True))
    try:
        with pytest.raises(pytest.UsageError, match=naming("marker requirement", 'requirement("REQ-12")')):
            Reporting(None, is_worker=True).pytest_collection_modifyitems([request.node])
    finally:
        request.node.own_markers.pop()


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(pytest.UsageError, match=naming("--hil-report", "Not a directory")):
        Reporting(tmp_path / "file", is_worker=False).pytest_sessionstart()


def test_endpoints_of_hardware_without_hardware_are_refused() -> None:
    """Or a test would pass in lockstep that was meant to be one of the robot."""
    endpoints = ["plant_state=tcp://127.0.0.1:1", "joint_commands=tcp://127.0.0.1:2"]
    with pytest.raises(InvalidArgumentError, match=naming("--hil-endpoint", "--hil=hardware")):
        open_bench("lockstep", Setup("panda_computed_torque"), RobotCache(), (), 0, endpoints)
    with pytest.raises(InvalidArgumentError, match=naming("marker hil", "plant", "[1]")):
        merged(Setup("panda_computed_torque"), {"plant": [1]})


def test_names_of_files() -> None:
    names = [file_name(f"tests/test_arm.py::{test}") for test in ("test_x[a/b]", "test_x[a b]", "test_" + 200 * "y")]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"[\w-]{1,100}", name) for name in names)


@pytest.mark.slow
def test_a_marker_alone_brings_the_fixtures(tmp_path: Path) -> None:
    """The marker is on a test, a class or a module; without one, the error lists the ways to name a launch file."""
    mark = f"""pytest.mark.hil(launch=r"{ROOT / "launch" / "ur5e_computed_torque.launch.yaml"}", arguments={{
        "robot": r"{ROOT / "urdf" / "double_pendulum.urdf"}"}})"""
    asks = "(run):\n    run(0.05).check.stops().at_most(0)\n"
    in_class = asks.replace("(run)", "(self, run)").replace("    ", "        ")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (tmp_path / "test_1.py").write_text(
        f"import pytest\n\ndef test_plain():\n    pass\n\n@{mark}\ndef test_marked{asks}\ndef test_bare{asks}"
    )
    (tmp_path / "test_2.py").write_text(f"import pytest\n\n@{mark}\nclass TestOf:\n    def test_class{in_class}")
    (tmp_path / "test_3.py").write_text(f"import pytest\n\npytestmark = {mark}\n\ndef test_module{asks}")
    for file in ("test_2.py", "test_3.py"):  # each by itself: nobody before it has brought them
        output = session(tmp_path, file, "--setup-plan")
        assert "(fixtures used: hil_benches, hil_robot_cache, hil_setup, request, run)" in output, output
    output = session(tmp_path, "test_1.py")
    assert "2 passed, 1 error" in output, output
    assert "test_bare has no launch file: expected hil_launch in the pytest section, --hil-launch, or @pytest" in output
