"""A node of ROS 2's, in a domain of this process alone, on this machine alone."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.graph.in_process import Nodes, nodes_in
from tests.ros2 import DOMAIN

with contextlib.suppress(ImportError), warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of sre_parse, by a library of a library of rclpy's
    import rosidl_parser.parser  # noqa: F401


@pytest.fixture(scope="session")
def domain() -> int:
    return DOMAIN


@pytest.fixture(scope="session")
def ros_context() -> Iterator[Any]:
    rclpy = pytest.importorskip("rclpy", reason="dependency group test-ros2")
    saved_environment = {name: os.environ.get(name) for name in ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE")}
    # Read when a context is made: a robot in the same network must not hear of a test.
    os.environ.update(ROS_DOMAIN_ID=str(DOMAIN), ROS_AUTOMATIC_DISCOVERY_RANGE="LOCALHOST")
    context = rclpy.Context()
    rclpy.init(context=context)
    yield context
    rclpy.shutdown(context=context)
    for name, value in saved_environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


class Ros:
    """Turns one node of ROS 2's together with ours, in one thread."""

    def __init__(self, context: Any, nodes: Nodes) -> None:
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.node import Node

        self.node = Node("listener", context=context)
        self._executor = SingleThreadedExecutor(context=context)
        self._executor.add_node(self.node)
        self._nodes = nodes

    def until(self, condition: Any, complaint: str = "it never came") -> Any:
        def turned() -> Any:
            # Without waiting: our own nodes turn in the same thread, and each would wait for the other.
            self._executor.spin_once(timeout_sec=0)
            return condition()

        return self._nodes.until(turned, complaint)

    def close(self) -> None:
        self._executor.shutdown()
        self.node.destroy_node()


@pytest.fixture
def nodes(tmp_path: Any) -> Iterator[Nodes]:
    with nodes_in(tmp_path) as test_nodes:
        yield test_nodes


@pytest.fixture
def ros(ros_context: Any, nodes: Nodes) -> Iterator[Ros]:
    peer = Ros(ros_context, nodes)
    yield peer
    peer.close()
