"""The influence operators, the blocks of the equations of motion, and the mass matrix in three steps, at a state.

    Phi_A   block (i, ip) is A_i                                     Def. 1
    Psi_A   row i is A_i times row ip, and e in column i             (P3), as z = Phi_A z + e
    J = Psi_D G,   Q = M J,   script-M = J^T Q                       (18c), 'Computing System Mass Matrix'

with A = D, (4), or A = beta, (19b). The bodies are the document's: what moves with one joint is one body, whatever is
fixed to it, and is expressed in the axes of that joint's child link.
Each works with the same D, G, M and the same sweeps as the kernels that never form a matrix; only here are they
multiplied out. Cost: O(N d) blocks with d the depth; step 3 is O(N^2 d). Source: Newton-Euler document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

from dyn_service.dynamics import expressions as ex
from dyn_service.dynamics import mass_matrix, passive
from dyn_service.dynamics.articulated import branches
from dyn_service.dynamics.kinematics import free_selector, influences, locked_diagonal, motion_subspaces
from dyn_service.dynamics.newton_euler import inertias, lifts, velocities, velocity_loads, velocity_products
from dyn_service.dynamics.rolled_tree import RolledTree, Walk
from dyn_service.dynamics.spatial import Mat, angular, constant, cross, join, linear, skew
from dyn_service.dynamics.sweeps import PerBody, outward
from dyn_service.model.tree import Tree

_SIX = ex.eye(6)


def influence_operators(tree: Tree, q: Mat) -> dict[str, Mat]:
    """Phi_D and Psi_D: `phi` (nv, 6, 6), and `psi` (na, 6, 6) at `topology.pairs`."""
    return _operators(tree, influences(tree, q))


def yielding_operators(tree: Tree, q: Mat) -> dict[str, Mat]:
    """Phi_beta and Psi_beta, as `influence_operators`."""
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    return _operators(tree, branches(tree, D, G, M).beta)


def _operators(tree: Tree, A: Sequence[Any]) -> dict[str, Mat]:
    phi = _stacked(ex.zeros(6, 6) if parent < 0 else A[i] @ _SIX for i, parent in enumerate(tree.parent))
    return {"phi": phi, "psi": _psi(tree, A)}


@singledispatch
def _psi(tree: Tree, A: Sequence[Any]) -> Mat:
    """Psi_A: its blocks at `topology.pairs`."""
    # Each row without its zeros: the blocks from the root's column to its own.
    rows: list[Mat] = []
    for i, parent in enumerate(tree.parent):
        rows.append(_SIX if parent < 0 else ex.horzcat(A[i] @ rows[parent], _SIX))
    return _stacked(block for row in rows for block in ex.horzsplit(row, 6))


@_psi.register(RolledTree)
def _psi_in_loops(tree: RolledTree, A: Sequence[Any]) -> Walk:
    return tree.walk(lambda _: (_SIX, _SIX), lambda i, block: (A[i] @ block,) * 2, outward=True)


@singledispatch
def mass_matrix_steps(tree: Tree, q: Mat) -> dict[str, Mat]:
    """J (nv, 6, nv), Q (nv, 6, nv) and their product (nv, nv): the document's three steps, all columns at once. The
    product is the bodies' part of M; with the joints' armature it is M.
    """
    D, M = influences(tree, q), inertias(tree)
    columns = free_selector(tree)
    # Rows of blocks, (6, nv).
    G = [subspace @ columns[part, :] for subspace, part in zip(motion_subspaces(tree), tree.in_v, strict=True)]
    J = outward(tree, D, G)
    Q = M @ J
    # The rotors are no bodies, so their inertia is not in the sum of the bodies' parts.
    product = ex.matrix(ex.diag(passive.armature(tree)) + locked_diagonal(tree))
    for J_i, Q_i in zip(J, Q, strict=True):
        product = product + J_i.T @ Q_i
    return {"jacobian": _stacked(J), "momenta": _stacked(Q), "mass_matrix": ex.densify(product)}


@mass_matrix_steps.register(RolledTree)
def _mass_matrix_steps_in_loops(tree: RolledTree, q: Mat) -> dict[str, Any]:
    """The same joint by joint; step 3 by what all bodies of a branch add to the momentum."""
    D, M = influences(tree, q), inertias(tree)
    columns, G = free_selector(tree), motion_subspaces(tree)

    def walked(f: Callable[[int, Mat], Mat]) -> Any:
        def start(a: int) -> tuple[Mat, Mat]:
            column = G[a] @ columns[tree.in_v[a], tree.in_v[a]]
            return f(a, column), column

        def step(b: int, J: Mat) -> tuple[Mat, Mat]:
            J_in_body = D[b] @ J
            return f(b, J_in_body), J_in_body

        return tree.walk(start, step, outward=True)

    return {
        "jacobian": walked(lambda _, J: J),
        "momenta": walked(lambda b, J: M[b] @ J),
        "mass_matrix": mass_matrix.mass_matrix(tree, q),
    }


def newton_euler_blocks(tree: Tree, q: Mat, v: Mat, gravity: Mat, wrenches: PerBody | None = None) -> dict[str, Mat]:
    """D, G, S, A, A-bar, M, M-bar, B, B-bar, Y and F-bar of (1)-(17), one per body in its own axes.

    All external load on a body is summed at its centre of mass, where weight acts: y_i = s_i.
    """
    D, G, M = influences(tree, q), motion_subspaces(tree), inertias(tree)
    V = velocities(tree, D, G, v)
    omega = [angular(V_i) for V_i in V]
    centre = [constant(body.com) for body in tree.inertia]
    inertia_about_com = [constant(body.about_com) for body in tree.inertia]
    zero = ex.zeros(3, 1)
    S = PerBody(ex.blockcat([[ex.eye(3), ex.zeros(3, 3)], [-skew(s), ex.eye(3)]]) for s in centre)
    ups = lifts(tree, D, gravity)
    loads = PerBody(join(zero, -body.mass * linear(up)) for body, up in zip(tree.inertia, ups, strict=True))
    if wrenches is not None:
        about_centre = [
            join(angular(W) - cross(s, linear(W)), linear(W)) for W, s in zip(wrenches, centre, strict=True)
        ]
        loads = loads + about_centre
    blocks = {
        "influence": PerBody(ex.zeros(6, 6) if p < 0 else D[i] @ _SIX for i, p in enumerate(tree.parent)),
        "free_axis": [G_i.T for G_i in G],  # of a follower as v meets it, its multiplier times as long
        "centre_lever": S,
        "velocity_products": velocity_products(tree, D, G, V, v),
        "centre_velocity_products": PerBody(
            join(zero, cross(w, cross(w, s))) for w, s in zip(omega, centre, strict=True)
        ),
        "inertia": PerBody(M_i @ _SIX for M_i in M),
        "centre_inertia": PerBody(
            ex.diagcat(I, body.mass * ex.eye(3)) for I, body in zip(inertia_about_com, tree.inertia, strict=True)
        ),
        "velocity_loads": velocity_loads(M, V),
        "centre_velocity_loads": PerBody(
            join(cross(w, I @ w), zero) for w, I in zip(omega, inertia_about_com, strict=True)
        ),
        "external_lever": S,
        "external_loads": loads,
    }
    return {name: _stacked(stack) for name, stack in blocks.items()}


def _stacked(blocks: Any) -> Mat:
    return ex.vertcat(*map(ex.densify, blocks))
