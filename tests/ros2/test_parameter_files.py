"""The parameter files that come along, read by ROS 2's own parser, that of rcl, and by ours."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("rclpy", reason="dependency group test-ros2")

import rclpy
from rclpy.node import Node

from dyn_service.support.documents import read_document
from tests.conftest import ROOT

FILES = sorted(path for path in ROOT.glob("config/*.yaml") if "ros__parameters" in path.read_text())
OF_THEIR_OWN = {"use_sim_time", "start_type_description_service"}
BEYOND = {
    "delta_controller.yaml",
    "panda_controller.yaml",
    "panda_payload.yaml",
    "solo12_plant.yaml",
    "solo12_walk.yaml",
}
"""Lists of lists, or of maps: our parameters can be such, ROS 2's cannot. docs/ros2.md says so."""


def _by_rcl(path: Any, node: str) -> dict[str, Any]:
    context = rclpy.Context()
    rclpy.init(args=["--ros-args", "--params-file", str(path)], context=context)
    try:
        settings = {"allow_undeclared_parameters": True, "automatically_declare_parameters_from_overrides": True}
        ros_node = Node(node, context=context, **settings)
        names = [name for name in ros_node.list_parameters([], 0).names if name not in OF_THEIR_OWN]
        parameters = {parameter.name: parameter.value for parameter in ros_node.get_parameters(names)}
        ros_node.destroy_node()
    finally:
        rclpy.shutdown(context=context)
    return {name: list(value) if hasattr(value, "tolist") else value for name, value in parameters.items()}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat_values: dict[str, Any] = {}
    for name, value in values.items():
        flat_values |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat_values


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_rcl_reads_the_same(path: Any) -> None:
    document = read_document(path).value
    for node, section in document.items():
        if path.name in BEYOND:
            with pytest.raises(RuntimeError, match="parse params file"):
                _by_rcl(path, node)
        else:
            assert _by_rcl(path, node) == _flat(section["ros__parameters"])
