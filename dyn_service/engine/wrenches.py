"""Conversion of external wrenches on links, points and frames to one wrench per body in its own axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dyn_service.api.arrays import broadcast, found_instead, vector
from dyn_service.api.queries import Array, Wrench
from dyn_service.errors import InvalidArgumentError
from dyn_service.kernels.row_rotation import move, turn
from dyn_service.kernels.wrenches import Place
from dyn_service.model.composite import Weld
from dyn_service.model.tree import Tree


def link_wrenches(
    wrenches: Wrench | Sequence[Wrench], index: Callable[[str, str], int], rotations: Callable[[], Array]
) -> list[tuple[int, Array, Array]]:
    """Returns link, torque (..., 3) and force (..., 3) of each wrench, at the link's origin in the link's axes.

    Args:
        wrenches: The wrenches from the caller.
        index: Returns the index of a link by name; the second argument is the path of the name, for errors.
        rotations: Returns R_WL of every link, (..., nl, 3, 3); called only for frames other than the link's own.

    Raises:
        InvalidArgumentError: A wrench, torque, force or point has the wrong type or shape.
        NotFoundError: Raised by `index`.
    """
    on_each_link: list[tuple[int, Array, Array]] = []
    R_WL: Array | None = None
    sequence = [wrenches] if isinstance(wrenches, Wrench) else wrenches
    if isinstance(sequence, str) or not isinstance(sequence, Sequence):
        raise InvalidArgumentError(
            f"wrenches must be a Wrench or a list of them, found {found_instead('Wrench', wrenches)}",
            path="inputs.wrenches",
        )
    for k, wrench in enumerate(sequence):
        path = f"inputs.wrenches[{k}]"
        if not isinstance(wrench, Wrench):
            raise InvalidArgumentError(
                f"wrenches[{k}] must be a Wrench, found {found_instead('Wrench', wrench)}", path=path
            )
        link = index(wrench.link, f"{path}.link")
        parts = {part: vector(getattr(wrench, part), f"{path}.{part}") for part in ("torque", "force", "point")}
        leads = {f"{path}.{part}": array.shape[:-1] for part, array in parts.items()}
        torque, force, point = parts.values()
        if wrench.frame != wrench.link:
            R_WL = rotations() if R_WL is None else R_WL
            broadcast({"q": R_WL.shape[:-3], **leads})
            if wrench.frame != "world":
                R_WF = R_WL[..., index(wrench.frame, f"{path}.frame"), :, :]
                torque, force = turn(R_WF, torque), turn(R_WF, force)
            R_LW = np.swapaxes(R_WL[..., link, :, :], -1, -2)
            torque, force = turn(R_LW, torque), turn(R_LW, force)
        else:
            broadcast(leads)
        # These steps, here and in `on_bodies`, exist a second time in `kernels.wrenches` and must keep their order, so
        # that both have the same bits. That form converts one wrench of one state in 0.4 us, this one in 21 us; only
        # this one takes any leading axes and long lists, follows `numpy.errstate`, and reports what is invalid.
        torque = move(torque, point, force)
        torque, force = np.broadcast_arrays(torque, force)
        on_each_link.append((link, torque, force))
    return on_each_link


def on_links(wrenches: list[tuple[int, Array, Array]], tree: Tree) -> Array:
    """Returns [torque; force] on each link, at its origin in its axes, (..., nl, 6)."""
    return _summed([(link, np.concatenate([torque, force], axis=-1)) for link, torque, force in wrenches], len(tree))


def on_bodies(wrenches: list[tuple[int, Array, Array]], weld: Weld) -> Array:
    """Returns [torque; force] on each moving body, (..., nb, 6); wrenches on fixed links are ignored."""
    moving = []
    for link, torque, force in wrenches:
        # A fixed link carries any wrench without moving.
        if weld.body[link] >= 0:
            force = turn(weld.rotation[link], force)
            torque = move(turn(weld.rotation[link], torque), weld.origin[link], force)
            moving.append((weld.body[link], np.concatenate([torque, force], axis=-1)))
    return _summed(moving, len(weld.tree))


def places(tree: Tree, weld: Weld, *, links: bool) -> list[Place]:
    """Returns the body of a wrench on each link: `on_links` or `on_bodies` for the call of one state."""
    if links:
        return [Place(link) for link in range(len(tree))]
    return [
        Place(body, R.tolist(), p.tolist()) for body, R, p in zip(weld.body, weld.rotation, weld.origin, strict=True)
    ]


def _summed(wrenches: list[tuple[int, Array]], bodies: int) -> Array:
    lead = broadcast({f"wrenches[{k}]": array.shape[:-1] for k, (_, array) in enumerate(wrenches)})
    total = np.zeros((*lead, bodies, 6))
    for body, array in wrenches:
        total[..., body, :] += array
    return total
