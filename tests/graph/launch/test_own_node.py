"""A node of another package, that of docs/launch.md: it starts, its parameters are checked, its panel is reported."""

import importlib
import io
import json
import os
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console

from docs.pages import fenced
from dyn_service.errors import InvalidArgumentError
from dyn_service.graph.launch import launch_file
from dyn_service.graph.launch.planner import REPORT_KEYS, LaunchPlan, ProcessPlan, make_plan
from dyn_service.graph.launch.report import write_report
from dyn_service.graph.launch.schema import read_launch_file
from dyn_service.graph.launch.supervisor import Outcome
from dyn_service.graph.middleware.node_kind import NodeKind, Panel, Section
from dyn_service.graph.middleware.telemetry import Ready, TelemetryStore
from dyn_service.graph.nodes import registry
from dyn_service.graph.nodes.registry import SHIPPED, Registry
from tests.conftest import ROOT
from tests.phrases import naming

SECTION = (ROOT / "docs" / "launch.md").read_text("utf-8").partition("## A node of your own\n")[2]
(MODULE,), (PROJECT, *_), (LAUNCH,) = (fenced(SECTION, language) for language in ("python", "toml", "yaml"))
WHEN_IT_HAS_RUN = "  - executable: {cmd: sleep 0.5, on_exit: shutdown}\n"


def installed(folder: Path, module: str, entries: dict[str, str], package: str = "my_robot") -> None:
    """Writes a package with one module, `nodes.thermometer`, and its installed metadata."""
    (folder / package / "nodes").mkdir(parents=True)
    (folder / package / "nodes" / "thermometer.py").write_text(module, "utf-8")
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", "utf-8")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[dyn_service.nodes]", *lines]), "utf-8")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, on the path here and in what is started."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(ROOT)]))
    modules_before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - modules_before:
        if name.partition(".")[0] == "my_robot":
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def documented(site: Path) -> Path:
    """The package of the page."""
    installed(site, MODULE, tomllib.loads(PROJECT)["project"]["entry-points"]["dyn_service.nodes"])
    return site


def launch_file_of(folder: Path, text: str) -> Path:
    path = folder / "own.launch.yaml"
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def test_it_is_launched_and_its_panel_shown(documented: Path, tmp_path: Path) -> None:
    screen, report = io.StringIO(), tmp_path / "report"
    path = launch_file_of(tmp_path, LAUNCH + WHEN_IT_HAS_RUN)
    status = launch_file(path, report_dir=report, console=Console(file=screen, width=200))
    output = screen.getvalue()
    assert status == 0, output
    content = json.loads((report / "report.json").read_text("utf-8"))
    assert content["processes"][0]["name"] == "motor"
    assert content["processes"][0]["parameters"] == {"rate_hz": 100.0}
    assert 20.0 < content["temperature"]["max_c"] < 50.0
    assert f"[launch] temperature: max {content['temperature']['max_c']:.1f} deg C" in output
    page = (report / "index.html").read_text("utf-8")
    assert "temperature: max" in page
    assert '<h3>temperature</h3><img class="picture" alt="temperature" src="data:image/svg+xml;base64,' in page
    assert not {"plant", "tracking", "requests", "loads"} & set(content)


@pytest.mark.parametrize(
    ("parameter", "fault"),
    [
        ("{name: rate_hzz, value: 1.0}", "parameter 'rate_hzz': unknown key 'rate_hzz'; did you mean 'rate_hz'?"),
        ("{name: rate_hz, value: fast}", "parameter 'rate_hz': expected a number, found text"),
    ],
)
def test_its_parameters_are_checked_before_anything_starts(
    documented: Path, tmp_path: Path, parameter: str, fault: str
) -> None:
    mark = tmp_path / "started"
    path = launch_file_of(
        tmp_path,
        f"""\
        launch:
          - executable: {{cmd: touch {mark}}}
          - node: {{pkg: my_robot, exec: thermometer, param: [{parameter}]}}
        """,
    )
    with pytest.raises(InvalidArgumentError) as excinfo:
        launch_file(path, console=Console(file=io.StringIO()))
    assert str(excinfo.value) == f"{path}:3: launch[1].node.param[0]: {fault}"
    assert not mark.exists()


def plan_of(tmp_path: Path, text: str) -> LaunchPlan:
    return make_plan(read_launch_file(launch_file_of(tmp_path, text)), {})


def test_a_node_runs_the_module_that_declares_it(site: Path, tmp_path: Path) -> None:
    installed(site, MODULE, {"hot": "my_robot.nodes.thermometer:NODE"})
    registered, other = plan_of(
        tmp_path, "launch: [{node: {pkg: my_robot, exec: hot}}, {node: {pkg: my_robot, exec: not_registered}}]"
    ).processes
    assert registered.command[1:4] == ("-P", "-m", "my_robot.nodes.thermometer")
    assert other.command[1:4] == ("-P", "-m", "my_robot.nodes.not_registered")
    assert other.kind is None


@pytest.mark.parametrize(
    ("module", "fault"),
    [
        ("1 / 0", "node 'thermometer' of package 'my_robot' cannot be loaded: ZeroDivisionError: division by zero"),
        ("NODE = 5", "node 'thermometer' of package 'my_robot': 'my_robot.nodes.thermometer:NODE' is not a NodeKind"),
        (
            MODULE.replace('Panel("temperature"', 'Panel("outcome"'),
            "section 'outcome' of the report belongs to the report itself: my_robot/thermometer cannot have it too",
        ),
    ],
)
def test_a_declaration_that_is_none_is_a_fault_of_the_launch(
    site: Path, tmp_path: Path, module: str, fault: str
) -> None:
    installed(site, module, {"thermometer": "my_robot.nodes.thermometer:NODE"})
    with pytest.raises(InvalidArgumentError) as excinfo:
        plan_of(tmp_path, LAUNCH)
    assert str(excinfo.value) == f"{tmp_path}/own.launch.yaml:2: launch[0].node.exec: {fault}"


def test_panels_of_two_nodes_may_not_share_a_section(site: Path, tmp_path: Path) -> None:
    module = MODULE.replace('Panel("temperature"', 'Panel("plant"')
    installed(site, module, {"thermometer": "my_robot.nodes.thermometer:NODE"})
    text = "launch: [{node: {pkg: dyn_service, exec: plant, param: [{name: robot, value: panda}]}},"
    with pytest.raises(InvalidArgumentError, match=naming("'plant'", "dyn_service/plant")):
        plan_of(tmp_path, text + "{node: {pkg: my_robot, exec: thermometer}}]")
    twice = "launch: [{node: {pkg: my_robot, exec: thermometer}}, {node: {pkg: my_robot, exec: thermometer, name: b}}]"
    assert len(plan_of(tmp_path, twice).processes) == 2


def test_nodes_of_this_package_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the only registration; entry points of an older version of this package are ignored."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "dyn_service.nodes" not in project["entry-points"]
    stale = [EntryPoint("plant", "dyn_service.gone:NODE", "dyn_service.nodes")]
    monkeypatch.setattr(registry, "entry_points", lambda *, group: stale)
    nodes = Registry()
    assert nodes.names("dyn_service") == list(SHIPPED)
    for name in SHIPPED:
        kind = nodes.find("dyn_service", name)
        assert kind is not None
        assert kind.name == name
        assert not {panel.section for panel in kind.panels} & set(REPORT_KEYS)


def test_declarations_are_light() -> None:
    """Planning a launch loads no engine, no server and no matplotlib."""
    code = (
        "import sys; from dyn_service.graph.launch import launch_file;"
        "from dyn_service.graph.nodes.registry import Registry\n"
        "found = Registry(); [found.find('dyn_service', name) for name in found.names('dyn_service')]\n"
        "heavy = {'casadi', 'llvmlite', 'scipy', 'matplotlib', 'dyn_service.engine.robot',"
        " 'dyn_service.service.server.app'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stderr


def failing(failure: str, stem: str = "other"):
    def make(node, store):
        if failure == "make":
            raise KeyError("no such column")
        return Section({"x": object() if failure == "json" else 1}, ["made"], {stem: lambda title: 1 / 0})

    return make


@pytest.mark.parametrize(
    ("failure", "lines", "is_kept"),
    [
        ("make", ["panel 'bad' failed: KeyError: 'no such column'"], False),
        ("json", ["panel 'bad' failed: TypeError: Object of type object is not JSON serializable"], False),
        ("draw", ["made", "panel 'bad' failed: ZeroDivisionError: division by zero"], True),
    ],
)
def test_a_panel_that_fails_costs_only_itself(tmp_path: Path, failure: str, lines: list[str], is_kept: bool) -> None:
    good = Panel("good", lambda node, store: Section({"y": float("nan")}))
    kind = NodeKind("n", object, lambda node: None, panels=(Panel("bad", failing(failure)), good))
    plan = LaunchPlan(tmp_path / "x.launch.yaml", {}, (ProcessPlan("n", (), "", kind=kind),))
    store = TelemetryStore()
    store.take(Ready("n", 1))
    assert write_report(tmp_path, plan, store, Outcome()) == lines
    content = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert content["good"] == {"y": None}
    assert ("bad" in content) is is_kept
