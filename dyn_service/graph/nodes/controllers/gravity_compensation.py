"""The gravity compensation controller: see `control/laws/computed_torque.py`."""

from __future__ import annotations

from typing import Annotated

from dyn_service.control.laws.computed_torque import GravityCompensation
from dyn_service.graph.nodes.controllers.controller_kind import controller_kind
from dyn_service.graph.nodes.controllers.parameters import LoopParameters
from dyn_service.support.parameter_descriptions import settable


class GravityCompensationParameters(LoopParameters, forbid_unknown_fields=True, kw_only=True):
    """Parameters in addition to those of the loop. damping: 1/s, speeds decay as exp(-damping t)."""

    damping: Annotated[float, settable] = 2.0


NODE = controller_kind(
    "gravity_compensation", GravityCompensationParameters, lambda p, model: GravityCompensation(model, p.damping)
)

if __name__ == "__main__":
    raise SystemExit(NODE.run())
