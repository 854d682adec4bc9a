"""The public names, the modules that they import, and the base install without optional libraries."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import dyn_service
from dyn_service import AsyncClient, Client, RemoteRobot, Robot, RobotQueries, errors
from dyn_service.service.protocol.messages import ADMINISTRATION
from tests.conftest import ROOT

LOCAL_ATTRIBUTES = {
    "acting",
    "base",
    "bodies",
    "certificates",
    "export",
    "export_fmu",
    "for_computation",
    "from_file",
    "from_text",
    "from_urdf",
    "as_described",
    "lead",
    "overlay_of",
    "share",
    "study",
    "loop_joints",
    "massless_joint",
    "prepare",
    "receipt",
    "repeat_steps",
    "signature",
    "sizes",
    "term_of_law",
    "tree",
    "with_payload",
    "workers",
    "without_passive",
}
"""Attributes of robots in this process only: files, trees and kernels."""

ENGINE = ("casadi", "llvmlite", "scipy", "defusedxml", "typer", "rich", "yaml", "matplotlib")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_names_resolve() -> None:
    assert len(set(dyn_service.__all__)) == len(dyn_service.__all__)
    for name in dyn_service.__all__:
        assert getattr(dyn_service, name) is not None
    assert set(dyn_service.__all__) <= set(dir(dyn_service))
    with pytest.raises(AttributeError, match="has no attribute 'Roboter'"):
        _ = dyn_service.Roboter


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse((ROOT / "dyn_service" / "__init__.py").read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dyn_service")
        for alias in node.names
    }
    assert imported == set(dyn_service.__all__) - {"__version__"}


def test_all_errors_are_public() -> None:
    kinds = {
        n for n, k in vars(errors).items() if isinstance(k, type) and issubclass(k, errors.DynError) and n[0] != "_"
    }
    assert kinds <= set(dyn_service.__all__)


def test_importing_the_package_brings_nothing_along() -> None:
    loaded = run("import sys, dyn_service; print(*[m for m in sys.modules if m.startswith(('dyn_', 'numpy', 'zmq'))])")
    assert loaded == "dyn_service"


def test_importing_its_folders_brings_no_library_along() -> None:
    """Each process of a launch imports these; their names are imported when they are first used."""
    folders = "control, formulations, graph, graph.bags, hil, studies".replace(", ", ", dyn_service.")
    code = f"import sys, dyn_service.{folders}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    assert not {"numpy", "zmq", "msgspec", "mcap", "yaml", *ENGINE} & set(run(code).split())


def test_clients_bring_no_engine_along() -> None:
    # In a process of its own: here the engine is imported already.
    code = "import sys; from dyn_service import Client, AsyncClient, connect, Wrench, DynError; print(*sys.modules)"
    modules = {name.partition(".")[0] for name in run(code).split()} & set(ENGINE)
    assert modules == set()
    inner = [name for name in run(code).split() if name.startswith("dyn_service.")]
    client_parts = (
        "service.client",
        "service.protocol",
        "api",
        "errors",
        "support.suggestions",
        "support.upward",
        "connect",
    )
    # Configurations too, but neither trees nor robot files.
    joints = {"model", "model.arrays", "model.configuration", "model.joints", "model.inertia", "model.description"}
    joints |= {"model.motors", "model.order"}
    joints |= {f"model.joints.{name}" for name in ("base", "axial", "multi_dof", "rotations")}
    engine_parts = {name.removeprefix("dyn_service.") for name in inner} - {"service", "support"}
    assert {name for name in engine_parts if not name.startswith(client_parts)} <= joints


def test_robot_without_the_server_extra_says_what_to_install() -> None:
    code = """
import sys
sys.modules["defusedxml"] = sys.modules["defusedxml.ElementTree"] = None
import dyn_service
try:
    dyn_service.Robot
except ModuleNotFoundError as error:
    print(error)
"""
    assert "pip install 'dyn_service[server]'" in run(code)


def test_a_public_name_without_its_extra_says_what_to_install() -> None:
    code = """
import sys
sys.modules["mcap"] = None
try:
    from dyn_service.graph.bags import BagReader
except ModuleNotFoundError as error:
    print(error)
from dyn_service.graph.bags import recording
print(recording.__name__)
"""
    message, name = run(code).splitlines()
    assert message.startswith("dyn_service.graph.bags.BagReader needs 'mcap'")
    assert message.endswith("pip install 'dyn_service[bags]'")
    assert name == "recording"


def test_table_is_what_clients_offer() -> None:
    administration = {name for name, entry in ADMINISTRATION.items() if not entry.names_robot}
    administration |= {"unload_robot", "overlay_robot"}
    for client in (Client, AsyncClient):
        methods = {n for n in vars(client) if not n.startswith("_") and callable(getattr(client, n))}
        assert methods - {"exchange"} == {"ask", "run", "close", "robot", *administration}


def test_both_robots_offer_the_same() -> None:
    """Local and remote robots have the same public attributes, except for those listed here."""
    for kind, extra in (
        (RemoteRobot, {"client", "with_timeout", "overlaid"}),
        (Robot, LOCAL_ATTRIBUTES | {"overlaid"}),
    ):
        assert {name for name in dir(kind) if not name.startswith("_")} - set(dir(RobotQueries)) == extra


def test_administration_is_answered_by_the_server() -> None:
    from dyn_service.service.protocol.limits import RequestLimits
    from dyn_service.service.server.administration.metrics import Metrics
    from dyn_service.service.server.answering.registry import Administrator, Registry

    metrics = Metrics()
    administrator = Administrator(
        Registry([], RequestLimits().max_robots, metrics), metrics, RequestLimits(), allow_load=True
    )
    assert {*administrator._answers, *administrator._changes} == set(ADMINISTRATION)
