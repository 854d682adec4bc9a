"""Queries whose answer is the same at every state: computed from the tree, without a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dyn_service.api.inputs import checked_options
from dyn_service.api.queries import Query
from dyn_service.dynamics import table_function
from dyn_service.engine.robot_model import RobotModel


def constant_outputs(row: Query, model: RobotModel, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns labels and outputs of a query without inputs, by name.

    Raises:
        InvalidArgumentError: An option is invalid.
        NotFoundError: An option names a link or joint that the robot does not have.
    """
    all_options = checked_options(row, options)
    arguments = {name: value for name, value in all_options.items() if name != row.rows_option}
    outputs: dict[str, Any] = {**model.rows.labels(row), **table_function(row.kernels[""])(model.tree, **arguments)}
    if (selection := model.rows.selection(row, all_options, model.name)) is not None:
        selection.apply(outputs)
    return outputs
