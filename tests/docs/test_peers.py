"""The benchmark against other libraries: it times only compared results, and its page shows its figures."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("peers", ROOT / "benchmarks" / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module
    spec.loader.exec_module(module)
    return module


def test_peers_agree_before_they_are_timed(peers: ModuleType) -> None:
    kinds = [peers.DynService, peers.PinocchioParallel, peers.Pinocchio, peers.MuJoCo]
    measurement = peers.measure(kinds, ["panda", "chain of 5"], [1, 3], rounds=1)
    assert measurement["missing"].keys() == peers.ABSENT.keys()
    measured_cases = {(row["robot"], row["query"], row["batch"], row["peer"]) for row in measurement["figures"]}
    assert len(measured_cases) == 2 * 2 * (4 + 4 + 3)  # PinocchioParallel has no mass matrix
    assert all(len(row["us"]) == 1 for row in measurement["figures"])


def test_a_wrong_peer_is_not_timed(peers: ModuleType) -> None:
    class Wrong(peers.DynService):  # type: ignore[name-defined, misc]
        name = "wrong"

        def result(self, answer: np.ndarray) -> np.ndarray:
            return answer * (1.0 + 1e-7)

    measurement = peers.measure([peers.DynService, Wrong], ["panda"], [2], rounds=1)
    assert {row["peer"] for row in measurement["figures"]} == {"dyn_service"}
    assert "inverse_dynamics of panda differ by 1.0e-07" in measurement["missing"]["wrong, panda, inverse_dynamics"]


def test_a_missing_peer_is_listed_with_the_reason(peers: ModuleType) -> None:
    class Missing(peers.DynService):  # type: ignore[name-defined, misc]
        name = "missing"

        def __init__(self, urdf: str, joints: object) -> None:
            raise ImportError("no such library")

    measurement = peers.measure([peers.DynService, Missing], ["panda"], [1], rounds=1)
    assert measurement["missing"] == {**peers.ABSENT, "missing, panda": "ImportError: no such library"}


def test_the_table_contains_the_figures(peers: ModuleType, tmp_path: Path) -> None:
    us = {"dyn_service": [0.5, 0.25, 0.75], "other": [2.0, 1.0, 3.0]}
    row = {"robot": "panda", "joints": 9, "batch": 64}
    figures = [row | {"query": query, "peer": peer, "us": us[peer]} for query in peers.QUERIES for peer in us]
    measurement = {"machine": peers.machine(), "versions": peers.versions(), "missing": {"x": "y"}, "figures": figures}
    measurement["first"] = {"dyn_service, panda, mass_matrix": 0.5}
    operations = dict.fromkeys(peers.QUERIES, 1000)
    measurement["limits"] = {"operations": operations, "operations_per_s": 1e10, "bytes_per_s": 1e10}
    page = tmp_path / "peers.md"
    peers.write_page(measurement, page)
    text = page.read_text()
    assert "| panda | 64 | 0.5 | 4.0 |" in text
    assert "- x: y" in text
    assert "<svg" in (tmp_path / "images" / "peers.svg").read_text()
