"""A robot without bound calls: each query's first call converts its arguments by NumPy, for comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyn_service import Robot
from dyn_service.api.queries import Query
from dyn_service.engine.calls import OverlayCache
from dyn_service.engine.evaluator import Evaluator


def unbound(robot: Robot) -> Robot:
    """Returns the same robot with the same kernels and no bound calls."""
    evaluator = Evaluator.__new__(Evaluator)
    evaluator.__dict__.update(robot.evaluator.__dict__)
    evaluator.row_calls, evaluator.direct_calls, evaluator.overlaid = {}, {}, OverlayCache()
    return Robot._with(evaluator)


def result_of(robot: Robot, row: Query, arguments: Mapping[str, Any]) -> Any:
    """Returns the result of a query whose arguments are converted by NumPy."""
    return getattr(unbound(robot), row.name)(**arguments)
