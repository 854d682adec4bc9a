"""Recorded requests repeated with Pinocchio and the same URDF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dyn_service import Robot
from dyn_service.errors import FailedPreconditionError
from dyn_service.graph.bags.reader import BagReader
from dyn_service.graph.bags.requests import REPLIES, REQUESTS, Verification, replay, verify
from dyn_service.graph.bags.writer import BagWriter
from dyn_service.messages.dyn_service_msgs import ServerReply, ServerRequest
from dyn_service.service.protocol.arrays import pack_array
from dyn_service.service.protocol.messages import encode
from tests.graph.bags.pinocchio_answers import WITHIN, pinocchio_answers
from tests.phrases import unnamed

INERTIA = '<inertia ixx="0.02" ixy="0.001" ixz="0.002" iyy="0.03" iyz="0.003" izz="0.04"/>'


def link(name: str, mass: float) -> str:
    origin = '<origin xyz="0.1 -0.05 0.2" rpy="0.1 0.2 0.3"/>'
    return f'<link name="{name}"><inertial>{origin}<mass value="{mass}"/>{INERTIA}</inertial></link>'


def joint(name: str, kind: str, parent: str, child: str, elements: str) -> str:
    return (
        f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/>'
        f'<origin xyz="0.2 0 0.1" rpy="0.3 0 0.2"/><axis xyz="0 0.6 0.8"/>{elements}</joint>'
    )


LIMIT = '<limit lower="-2" upper="2" velocity="3" effort="9"/>'
CRANE = (
    '<robot name="crane"><link name="base"/>'
    + link("tower", 3.0) + link("arm", 2.0) + link("hook", 1.0) + link("boom", 1.5)
    + joint("turn", "continuous", "base", "tower", '<dynamics damping="0.7" friction="0.2"/>')
    + joint("lift", "revolute", "tower", "arm", LIMIT + '<dynamics damping="0.3"/>')
    + joint("slide", "prismatic", "arm", "hook", LIMIT)
    + joint("fold", "revolute", "tower", "boom", LIMIT)
    + "</robot>"
)  # fmt: skip
"""Branches, which Pinocchio orders differently; a joint without limits, with two position entries in Pinocchio."""


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Requests for one state and for batches, with other gravity, and without passive forces."""
    path = tmp_path_factory.mktemp("bag") / "crane.mcap"
    answer = replay([Robot.from_text(CRANE)])
    rng = np.random.default_rng(5)
    states = lambda *names: {name: pack_array(rng.normal(size=4), name) for name in names}
    batch = {name: pack_array(rng.normal(size=(3, 4)), name) for name in ("q", "v", "a")}
    track = states("q", "v", "q_ref", "v_ref", "a_ref") | {"kp": pack_array(np.full(4, 100.0), "kp"), "kd": 20.0}
    requests = [
        ("inverse_dynamics", states("q", "v", "a"), {}),
        ("inverse_dynamics", batch | {"gravity": pack_array([1.0, 2.0, -3.0], "gravity")}, {"passive": False}),
        ("forward_dynamics", states("q", "v", "tau"), {}),
        ("mass_matrix", states("q"), {}),
        ("bias_forces", states("q", "v"), {}),
        ("gravity_forces", states("q"), {}),
        ("computed_torque", track, {}),
        ("link_poses", states("q"), {}),
        ("inverse_dynamics", states("q", "v"), {}),
    ]
    with BagWriter(path) as writer:
        for k, (query, inputs, options) in enumerate(requests):
            request = encode({"v": 1, "id": k, "query": query, "robot": "crane", "inputs": inputs, "options": options})
            writer.write(REQUESTS, ServerRequest(1, request), 2 * k)
            reply = answer(request)
            assert reply is not None
            writer.write(REPLIES, ServerReply(1, reply), 2 * k + 1)
    return path


def verified(bag: Path, text: str) -> Verification:
    remarks: list[str] = []
    with BagReader(bag) as reader:
        verification = verify(reader, pinocchio_answers([Robot.from_text(text)], [text], remarks.append))
    assert remarks == []
    return verification


def test_pinocchio_says_the_same(bag: Path) -> None:
    verification = verified(bag, CRANE)
    assert {name: result.count for name, result in verification.results.items()} == {
        "inverse_dynamics": 2, "forward_dynamics": 1, "mass_matrix": 1, "bias_forces": 1, "gravity_forces": 1,
        "computed_torque": 1,
    }  # fmt: skip
    assert verification.uncompared == {"not supported by this engine": 2}
    assert verification.largest < 1e-3 * WITHIN  # 1e-12: four joints cost three or four digits at most


def test_a_model_a_thousandth_heavier_is_found(bag: Path) -> None:
    """A robot with another mass of one link: all queries that depend on it differ."""
    verification = verified(bag, CRANE.replace('<mass value="1.0"/>', '<mass value="1.001"/>'))
    for name, result in verification.results.items():
        assert result.worst is not None
        assert 1e-5 < result.worst.difference.relative < 0.1, name


def test_robots_that_pinocchio_reads_differently_are_reported() -> None:
    remarks: list[str] = []
    flying = Robot.from_text(CRANE, root="floating")
    with pytest.raises(FailedPreconditionError, match="no robot that Pinocchio can take"):
        pinocchio_answers([flying], [CRANE, "<mujoco/>"], remarks.append)
    assert unnamed(remarks[0], "10", "4 in Pinocchio") == []
    assert "not the URDF file" in remarks[1]
