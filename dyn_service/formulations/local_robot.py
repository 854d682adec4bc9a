"""What independent checks of the equations need of a robot in this process, besides its queries."""

from __future__ import annotations

from abc import ABC, abstractmethod

from dyn_service.api.queries import RobotQueries
from dyn_service.model.description import LoopJoint
from dyn_service.model.tree import Tree


class LocalRobot(RobotQueries, ABC):
    """A robot in this process: `engine.robot.Robot`."""

    @property
    @abstractmethod
    def tree(self) -> Tree:
        """The robot as parent-first arrays, one body per link."""

    @property
    @abstractmethod
    def loop_joints(self) -> tuple[LoopJoint, ...]:
        """The joints that close loops of the tree."""

    @property
    @abstractmethod
    def massless_joint(self) -> str | None:
        """The movable joint nearest the leaves whose branch has no inertia along it in any configuration, or None."""
