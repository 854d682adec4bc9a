"""Declares a controller node from a law; it runs in the loop of `control_loop.py`.

NODE = controller_kind("damper", DamperParameters, lambda p, model: Damper(p.damping))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dyn_service.graph.middleware.node_kind import Column, NodeKind, Panel
from dyn_service.graph.nodes.controllers import report as controller_report
from dyn_service.graph.nodes.controllers.control_loop import (
    Input,
    L,
    LawSpec,
    MakeLaw,
    MakeMotion,
    Output,
    Service,
    run_controller,
)
from dyn_service.graph.nodes.controllers.parameters import MotionParameters, trajectory_maker


@dataclass(frozen=True)
class ControllerKind(NodeKind[L]):
    """A kind of node that runs a law. spec: of the law, also for use without a process: `law_spec.commander`."""

    spec: LawSpec[L] = field(kw_only=True)


def controller_kind(
    name: str,
    parameters: type[L],
    make_law: MakeLaw[L],
    *,
    make_motion: MakeMotion[L] | None = None,
    inputs: Sequence[Input] = (),
    outputs: Sequence[Output] = (),
    services: Sequence[Service] = (),
    panels: Sequence[Panel] = (),
    columns: Sequence[Column] = (),
    about: str = "",
    check: Callable[[L], None] = lambda parameters: None,
) -> ControllerKind[L]:
    """Returns the node of a control law.

    Args:
        name: Its name in launch files, `exec`.
        parameters: Its parameters: a subclass of `LoopParameters`, or of `MotionParameters` for a law that follows a
            reference motion.
        make_law: Makes the law from the parameters and the model; called once, before the loop begins.
        make_motion: Makes the function that begins the reference; by default from the parameter `trajectory`. Without
            such a parameter the reference is the position at arming, and no tracking error is reported.
        inputs: Topics that the law subscribes to.
        outputs: Topics that it publishes, latched.
        services: Its services.
        panels: Further parts of the report.
        columns: Further columns of the live table.
        about: A short description for `--help`.
        check: See `NodeKind.check`.

    Returns:
        The declaration; in its module, `NODE`.
    """
    if make_motion is None and issubclass(parameters, MotionParameters):
        make_motion = trajectory_maker  # type: ignore[assignment]  # L is below MotionParameters here
    spec = LawSpec(name, make_law, make_motion, tuple(inputs), tuple(outputs), tuple(services))
    return ControllerKind(
        name,
        parameters,
        lambda node: run_controller(node, spec),
        panels=(*controller_report.PANELS, *panels),
        columns=(*controller_report.COLUMNS, *columns),
        launched={"endpoint": "$(endpoint dynamics)"},
        about=about,
        check=check,
        spec=spec,
    )
