"""Conversion of arguments to the inputs of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dyn_service.api.arrays import broadcast, found, numbers
from dyn_service.api.queries import Array
from dyn_service.api.spec import Spec
from dyn_service.errors import InvalidArgumentError
from dyn_service.kernels.signature import Signature
from dyn_service.parsing.quantities import counted


def operand(name: str, spec: Spec, value: Any, core: tuple[int, ...], joints: int) -> Array:
    """Returns an input as an array of doubles.

    Args:
        name: The name of the input.
        spec: The specification of the input.
        value: The value from the caller.
        core: The shape without leading axes.
        joints: The number of movable joints, for the error.

    Raises:
        InvalidArgumentError: The value does not consist of real numbers, or has another shape.
    """
    path = f"inputs.{name}"
    array = numbers(value)
    if array is None:
        raise InvalidArgumentError(
            f"{name} must be real numbers of shape (..., {', '.join(map(str, core))}), found {found(value)}",
            path=path,
        )
    if spec.scalar and array.ndim == 0:
        return np.full(core, array[()])
    if array.ndim < len(core) or array.shape[array.ndim - len(core) :] != core:
        of = ""
        if spec.shape in (("nq",), ("nv",)):
            entries = "" if core == (joints,) else f", {spec.shape[0]} = {core[0]}"
            of = f" ({counted(joints, 'movable joint')}{entries})"
        raise InvalidArgumentError(
            f"{name} has shape {array.shape}, expected (..., {', '.join(map(str, core))}){of}", path=path
        )
    return array


def operands(signature: Signature, arguments: Mapping[str, Array]) -> tuple[list[Array], tuple[int, ...]]:
    """Returns the arguments in the kernel's order, those without entries padded, and their broadcast leading axes.

    Raises:
        InvalidArgumentError: The leading axes do not broadcast against each other; the message names them.
    """
    given = [arguments[each.name] for each in signature.inputs]
    for k, each in enumerate(signature.inputs):
        if (axes := signature.padded.get(each.name)) is not None:
            given[k] = np.zeros((*given[k].shape[: given[k].ndim - axes], 1))
    leads = {each.name: x.shape[: x.ndim - len(each.shape)] for each, x in zip(signature.inputs, given, strict=True)}
    return given, broadcast(leads)
