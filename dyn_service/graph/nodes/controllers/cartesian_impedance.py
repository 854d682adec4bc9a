"""The Cartesian impedance controller: see `control/laws/cartesian_impedance.py`."""

from __future__ import annotations

import msgspec

from dyn_service.control.laws.cartesian_impedance import CartesianImpedance
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import Motion, MotionParameters


class CartesianImpedanceParameters(MotionParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the Cartesian impedance controller, in addition to those of the loop and the motion.

    link: link of the point; empty is the last link. point: m, in the link's axes. stiffness: 6 numbers, N m/rad about
    the world's x, y, z and N/m along them. damping_ratio: of each mode. posture_frequency: rad/s, of the posture in the
    null space of the point; 0 leaves it free.
    """

    trajectory: Motion = "hold"
    link: str = ""
    point: list[float] = msgspec.field(default_factory=lambda: [0.0, 0.0, 0.0])
    stiffness: list[float] = msgspec.field(default_factory=lambda: [30.0] * 3 + [600.0] * 3)
    damping_ratio: float = 1.0
    posture_frequency: float = 5.0


NODE = controller_kind(
    "cartesian_impedance",
    CartesianImpedanceParameters,
    lambda p, model: CartesianImpedance(
        model, p.link or model.link_names[-1], p.point, p.stiffness, p.damping_ratio, p.posture_frequency
    ),
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
