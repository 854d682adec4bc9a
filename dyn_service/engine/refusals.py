"""Queries without an answer for a robot."""

from __future__ import annotations

from dyn_service.api.queries import Query, Row
from dyn_service.engine.loops.answers import is_computed_for_loops, refusal_of
from dyn_service.engine.robot_model import RobotModel
from dyn_service.errors import FailedPreconditionError


def refusal(model: RobotModel, row: Row, method: str = "", *, numbers: bool = True) -> str:
    """Returns why a method has no result, and no kernel, for this robot; "" if it has. numbers: whether to consider
    the numbers of the robot, which an overlay changes.
    """
    inverts = method in getattr(row, "inverts_mass_matrix", ())
    if model.description.unread_loops and (row.has_loads or inverts or is_computed_for_loops(row)):
        return model.description.loop_refusal
    if model.description.loop_joints and (text := refusal_of(row, method)):
        return text
    if method in getattr(row, "rejects_mimic", ()) and model.tree.has_mimics:
        joints = zip(model.tree.moving_joints, model.tree.mimic, strict=True)
        name, mimic = next((name, mimic) for name, mimic in joints if mimic)
        return (
            f"joint '{name}' follows '{mimic.joint}', and (19b) requires independent joints; load the robot "
            "without mimic"
        )
    # Where loops are closed, M is inverted for the motions that keep them closed only. Last, because this property
    # is slow when it is first read.
    if numbers and inverts and not model.description.loop_joints and model.massless_joint is not None:
        return (
            f"the branch of joint '{model.massless_joint}' has no inertia along it beyond rounding, so no finite "
            "effort gives a finite acceleration"
        )
    return ""


def check_answer(model: RobotModel, row: Row, method: str = "") -> None:
    """Raises FailedPreconditionError, which names the joint, for a method that has no result for this robot."""
    if isinstance(row, Query) and row.parts and refusal(model, row, method):
        # The error names the query of the list that has no answer.
        for part, choice in row.choices(method):
            check_answer(model, part, choice)
    if reason := refusal(model, row, method):
        name = row.name
        if isinstance(row, Query) and not all(refusal(model, row, choice) for choice in row.kernels):
            name = f"{row.name} with {row.kernel_option}='{method}'"
        raise FailedPreconditionError(f"{name} has no answer for robot '{model.name}': {reason}")
