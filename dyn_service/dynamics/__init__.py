"""The equations of motion as expressions, one module per formulation.

articulated         forward dynamics in O(N), the factored inverse of the mass matrix
body_frame          inverse dynamics in body frames, with intermediate results
closed_dynamics     dynamics and steps of closed loops as one function each
constraint          joint wrenches and their constraint parts
coriolis            the Coriolis matrix
derivatives         first derivatives of inverse and forward dynamics and of steps
expressions         matrices of expressions, and the instructions that compute them
hamilton            Hamilton's equations in (q, p)
hessians            weighted second derivatives of inverse and forward dynamics
integration         time steps
kinematics          poses of bodies, joint subspaces
loops               independent motions of closed loops
mass_matrix         mass matrix and forward dynamics through its factors
midpoint            the implicit midpoint step and its derivatives
motion_derivatives  first derivatives of points, momenta, energies and joint loads
newton_euler        inverse dynamics by the recursive Newton-Euler algorithm, control laws
operators           influence operators at a state
passive             damping, friction, armature and springs
projected           projected Newton-Euler equations
regressors          efforts, loads, momenta and energies, linear in the dynamic parameters
rolled_tree         recursions recorded once per kind of body, for kernels of large robots
sensors             ideal force/torque sensors and IMUs
spatial             six-vectors and their transforms
structure           neutral and random positions, topology: what depends on no state
sweeps              outward and inward recursions over the tree
symbolic            equations as readable text
task_space          task-space inertia and dynamics
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def table_function(name: str) -> Callable[..., Any]:
    """Returns a function of this package by its name in the table of queries, `module.function`."""
    module, _, function = name.partition(".")
    # By name, although imports would be plainer: a stored kernel is invalid when a module changes that its tracer
    # imports (`kernels.store.provenance`), so with imports each changed equation would compile all queries again.
    equation: Callable[..., Any] = getattr(import_module(f"{__name__}.{module}"), function)
    return equation
