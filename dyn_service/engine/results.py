"""The outputs of kernels as results of methods: their axes, labels, selected rows and classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service.api.queries import Query
from dyn_service.engine.bound_calls import Finish, Rotations
from dyn_service.engine.rows import Rows, Selection


class Untrimmed(dict[str, Any]):
    """The result of a list in which a query may have leading axes that only inputs of other queries have."""


def finish_of(
    row: Query, rows: Rows, selection: Selection | None, rotations: Rotations | None, *, selected: bool
) -> Finish | None:
    """Returns the conversion of a kernel's outputs to the result; None if the output is the result.

    Args:
        row: The row of the table.
        rows: The rows of the robot's results.
        selection: The selected rows.
        rotations: Where vectors are in world axes, the rotations of links; else None.
        selected: Whether the outputs consist of the selected rows only.
    """
    if row.result_type is None and rotations is None and selection is None:
        return None
    labels, place_of_pose = rows.labels(row), row.required.index(row.pose) if row.pose else -1

    def finish(outputs: Any, required: tuple[Any, ...]) -> Any:
        arrays = outputs if isinstance(outputs, tuple) else (outputs,)
        named_outputs = dict(zip(row.outputs, arrays, strict=True))
        if rotations is not None:
            rows.turn_to_world(named_outputs, row, rotations(required[place_of_pose]))
        named_outputs.update(labels)
        if selection is not None:
            selection.apply(named_outputs, selected=selected)
        return row.result(named_outputs)

    return finish


def list_finish(row: Query, labels: Mapping[str, Any]) -> Finish:
    """Returns the conversion of the outputs of a list's kernel to its result, as `Query.result` does it."""
    # All names are looked up here, once, because `finish` runs in each call.
    parts, first = [], 0
    for part in row.parts:
        last = first + len(part.outputs)
        names = {name: labels[f"{part.name}.{name}"] for name in part.labels}
        parts.append((part.name, part.result_type, tuple(part.outputs), names, first, last))
        first = last
    core = len(next(iter(row.outputs.values())).shape)
    places = [[row.required.index(name) for name in part.required] for part in row.parts]

    def finish(outputs: Any, required: tuple[Any, ...]) -> dict[str, Any]:
        results = {
            name: outputs[k] if kind is None else kind(**names, **dict(zip(fields, outputs[k:end], strict=True)))
            for name, kind, fields, names, k, end in parts
        }
        shape = outputs[0].shape
        if len(shape) == core:
            return results  # of one state
        lead = shape[: len(shape) - core]
        for part_inputs in places:  # if each query has an input with all leading axes, so has its result
            for k in part_inputs:
                x = required[k]
                if x.__class__ is np.ndarray and x.shape[:-1] == lead:
                    break
            else:
                return Untrimmed(results)
        return results

    return finish
