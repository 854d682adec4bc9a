"""Inputs of exported functions for external wrenches, payloads and joint friction.

A kernel takes the wrenches and inertias of all bodies. Exported functions take those of chosen links, and a program
that runs before the kernel computes its inputs from them, in the kernel's order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dyn_service.api.queries import Query
from dyn_service.api.spec import PASSIVE_PARTS, Variant
from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics.spatial import Mat, constant
from dyn_service.kernels.frames import KernelTree
from dyn_service.kernels.graph import Graph, inertia_in_symbols
from dyn_service.kernels.signature import Operand, Signature
from dyn_service.model.parameters import BODIES, COLUMNS, JOINTS, OF_BODY, OF_RATE, ROWS, parameters_of

if TYPE_CHECKING:
    from dyn_service.engine.robot import Robot

TEXTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "wrenches": ("N m | N", "[torque; force] on each link, at its origin in its axes"),
        "payload": (
            "kg | m | kg m^2",
            "a body fixed to each link: [mass; centre of mass; inertia about it: xx, xy, xz, yy, yz, zz], in its frame",
        ),
        "damping": ("N m s/rad | N s/m", "viscous damping of each rate"),
        "friction": ("N m | N", "Coulomb friction of each rate"),
    }
)
"""Unit and text of each input."""

_OF_JOINTS = ("damping", "friction")
"""The first numbers of each rate, in the order of `model.parameters`."""


@dataclass(frozen=True)
class ExtraInputs:
    """Inputs besides those of a plain call. wrenches, payload: names of links. friction: whether friction and damping
    are inputs.
    """

    wrenches: tuple[str, ...] = ()
    payload: tuple[str, ...] = ()
    friction: bool = False

    def of(self, row: Query, method: str) -> Variant:
        """Returns the variant of a row's kernel."""
        overlay = row.overlay is not None and bool(self.loaded(row, method) or self.of_joints(row, method))
        return Variant(row.wrenches is not None and bool(self.wrenches), overlay)

    def loaded(self, row: Query, method: str) -> tuple[str, ...]:
        """Returns the links whose payloads are inputs of a row."""
        return self.payload if method in row.inertia else ()

    def of_joints(self, row: Query, method: str) -> list[str]:
        """Returns those of damping and friction that are inputs of a row."""
        acting_parts = passive_parts(row, method)
        return [name for name in _OF_JOINTS if self.friction and name in acting_parts]

    def defaults(self, robot: Robot, row: Query, method: str) -> dict[str, np.ndarray]:
        """Returns the default numbers of the inputs of a row, by name."""
        variant = self.of(row, method)
        numbers = {"wrenches": np.zeros((len(self.wrenches), 6))} if variant.wrenches else {}
        if carrying := self.loaded(row, method):
            numbers["payload"] = np.zeros((len(carrying), OF_BODY))
        if variant.overlay and robot.sizes["nr"]:
            numbers |= {name: np.array(getattr(robot.tree.passive, name)) for name in self.of_joints(row, method)}
        return numbers

    def entries(self, robot: Robot) -> dict[str, Sequence[str]]:
        """Returns the names of the entries of each input."""
        rates = robot.evaluator.model.rows.rates
        return {"wrenches": self.wrenches, "payload": self.payload, "damping": rates, "friction": rates}


NO_EXTRA_INPUTS = ExtraInputs()


def passive_parts(row: Query, method: str) -> frozenset[str]:
    """Returns the passive joint properties on which the answer of a row depends, or which are its outputs."""
    return row.passive[method] | {name.rpartition(".")[2] for name in row.outputs} & {*PASSIVE_PARTS}


def with_inputs(
    robot: Robot, extra: ExtraInputs, kernel: Signature, required: int, defaults: Mapping[str, np.ndarray]
) -> tuple[Signature, Graph | None]:
    """Returns the signature of an exported function, and the program from its inputs to those of the kernel.

    Args:
        robot: The robot.
        extra: Inputs besides those of a plain call.
        kernel: The signature of the kernel.
        required: The number of its required inputs. The extra ones follow these.
        defaults: Of the extra inputs that this kernel has.
    """
    plain = [operand for operand in kernel.inputs if operand.kind not in ("wrenches", "overlay")]
    extra_operands = [
        Operand(name, x.shape, "payload" if name == "payload" else "plain") for name, x in defaults.items()
    ]
    exported = replace(kernel, inputs=(*plain[:required], *extra_operands, *plain[required:]))
    if not extra_operands:
        return exported, None
    with ex.graph():
        symbols = {operand.name: ex.sym(operand.name, operand.size) for operand in exported.inputs}
        kernel_inputs = _kernel_inputs(robot, extra, kernel, symbols)
        program = ex.Program.of([*symbols.values()], [ex.densify(ex.vec(kernel_inputs[x.name])) for x in kernel.inputs])
        signature = replace(exported, name=f"{kernel.name}-inputs", outputs=kernel.inputs, parts=())
        return exported, Graph(program, signature)


def _kernel_inputs(robot: Robot, extra: ExtraInputs, kernel: Signature, symbols: Mapping[str, Mat]) -> dict[str, Mat]:
    """Returns the inputs of a kernel by name."""
    weld, links = robot.bodies, kernel.bodies == "links"
    tree = robot.tree if links else weld.tree
    rotation = (np.eye(3),) * len(tree) if links else weld.rotation
    kernel_tree = KernelTree(tree, rotation, (np.zeros(3),) * len(tree) if links else weld.origin)

    def entries_of(names: Sequence[str], vector: Mat, size: int) -> list[tuple[int, int, Mat]]:
        """Returns link, body and numbers of each entry; those of links that never move are dropped."""
        indices = [robot.evaluator.model.index_of(name, "") for name in names]
        entries = [
            (link, link if links else weld.body[link], x)
            for link, x in zip(indices, ex.vertsplit(vector, size), strict=True)
        ]
        return [(link, body, x) for link, body, x in entries if body >= 0]

    inputs = dict(symbols)
    numbers = {name: constant(np.reshape(x, (-1, 1))) for name, x in parameters_of(tree).items()}
    for operand in kernel.inputs:
        if operand.kind == "wrenches":
            parts = [ex.zeros(6, 1) for _ in tree.links]
            for link, body, W in entries_of(extra.wrenches, symbols[operand.name], 6):
                parts[body] += kernel_tree.wrench(link, W)
        elif operand.kind == "overlay" and operand.name.endswith(f".{BODIES}"):
            parts = ex.vertsplit(numbers[BODIES], OF_BODY)
            payloads = entries_of(extra.payload, symbols["payload"], OF_BODY) if "payload" in symbols else []
            for link, body, x in payloads:
                parts[body] = _carried(parts[body], x, kernel_tree.rotation[link], kernel_tree.origin[link])
        elif operand.kind == "overlay":
            name = operand.name.rpartition(".")[2]
            parts = [numbers[name]]
            if name == JOINTS and any(part in symbols for part in _OF_JOINTS):
                table = ex.reshape(numbers[JOINTS], OF_RATE, operand.shape[0])
                rows = [symbols[part].T if part in symbols else table[k, :] for k, part in enumerate(_OF_JOINTS)]
                parts = [ex.vec(ex.vertcat(*rows, table[len(rows) :, :]))]
        else:
            continue
        inputs[operand.name] = ex.zeros(operand.size, 1) if operand.name in kernel.padded else ex.vertcat(*parts)
    return inputs


def _carried(body: Mat, payload: Mat, R: Any, p: Any) -> Mat:
    """Returns the numbers of a body that carries a payload on a link with the pose R, p in it."""
    body_inertia, payload_inertia = inertia_in_symbols(body), inertia_in_symbols(payload)
    mass = body_inertia.mass + payload_inertia.mass
    share = payload_inertia.mass / (mass + ex.logic_not(mass))  # 0 without mass
    R = constant(R)
    p_BP = R @ payload_inertia.com + constant(np.reshape(p, (3, 1))) - body_inertia.com
    parallel_axis = body_inertia.mass * share * (ex.dot(p_BP, p_BP) * ex.eye(3) - p_BP @ p_BP.T)
    about_com = body_inertia.about_com + R @ payload_inertia.about_com @ R.T + parallel_axis
    entries = [about_com[row, column] for row, column in zip(ROWS, COLUMNS, strict=True)]
    return ex.vertcat(mass, body_inertia.com + share * p_BP, *entries)
