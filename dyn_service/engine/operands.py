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
from dyn_service.parsing.places import counted


def operand(name: str, spec: Spec, value: Any, core: tuple[int, ...], joints: int) -> Array:
    """An input as an array of doubles.

    Args:
        name: What it is called.
        spec: Of it.
        value: As given.
        core: Its shape without leading axes.
        joints: How many move, for the error.

    Raises:
        InvalidArgumentError: It is not made of real numbers, or has another shape.
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
    """The arguments in the kernel's order, those without entries as it takes them; and their leading axes together.

    Raises:
        InvalidArgumentError: Their leading axes do not broadcast against each other; names them.
    """
    given = [arguments[each.name] for each in signature.inputs]
    for k, each in enumerate(signature.inputs):
        if (axes := signature.padded.get(each.name)) is not None:
            given[k] = np.zeros((*given[k].shape[: given[k].ndim - axes], 1))
    leads = {each.name: x.shape[: x.ndim - len(each.shape)] for each, x in zip(signature.inputs, given, strict=True)}
    return given, broadcast(leads)
