"""The parameters of the nodes, with their units and defaults. A name that is not here is a fault."""

from __future__ import annotations

from typing import Literal

import msgspec

from dyn_service.model.description import RootType


class PlantParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the plant.

    robot: path of the URDF. root: how its root link moves in the world. rate_hz: integration steps per second of wall
    time. integrator, substeps: how one step is done. state_rate_hz: joint states per second, at most rate_hz; 0 is
    every step. initial_position: rad | m, by joint or in order; empty is the middle of the limits. command_timeout_s:
    age at which a command is stale. stale_policy: what acts then: `zero` effort, `hold` the last effort, or `brake`
    (stands still). clamp_effort: whether efforts are cut to the URDF's limits. max_catch_up_s: how much missed time is
    integrated after an overrun; what is beyond is slipped. joint_states, joint_commands: topics or endpoints. record:
    whether the recording goes to the launcher.
    """

    robot: str
    root: RootType = "fixed"
    rate_hz: float = 1000.0
    integrator: Literal["rk4", "semi_implicit_euler", "explicit_euler"] = "rk4"
    substeps: int = 1
    state_rate_hz: float = 0.0
    initial_position: list[float] | dict[str, float] = []
    command_timeout_s: float = 0.1
    stale_policy: Literal["zero", "hold", "brake"] = "zero"
    clamp_effort: bool = True
    max_catch_up_s: float = 0.05
    joint_states: str = "joint_states"
    joint_commands: str = "joint_commands"
    record: bool = True


class MultiSineParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Sines about a centre; see `trajectory.MultiSineDesign`. An empty centre is the middle of the limits."""

    period_s: float = 6.0
    harmonics: int = 3
    range_fraction: float = 0.5
    velocity_fraction: float = 0.5
    max_amplitude: float = 0.6
    ramp_s: float = 2.0
    centre: list[float] = []


class PointToPointParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Moves between waypoints (each rad | m per joint), in a circle."""

    points: list[list[float]] = []
    move_s: float = 2.0
    dwell_s: float = 0.5


class ControllerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the computed-torque controller.

    endpoint: of the dynamics server. robot: its name there; empty where the server has one robot. rate_hz: commands
    per second. natural_frequency: rad/s of the tracking error, with damping_ratio; one number or one per joint.
    deadline_s: an answer after it counts as a deadline miss; 0 is one period. request_timeout_s: an answer after it
    is lost. loads_rate_hz: how often joint loads are asked for; 0 is never. delay_compensation: whether state and
    reference are taken at the middle of the time during which the command will act. trajectory: which motion.
    """

    endpoint: str = "tcp://127.0.0.1:5755"
    robot: str = ""
    rate_hz: float = 500.0
    natural_frequency: float | list[float] = 30.0
    damping_ratio: float = 1.0
    deadline_s: float = 0.0
    request_timeout_s: float = 0.25
    connect_timeout_s: float = 30.0
    loads_rate_hz: float = 25.0
    delay_compensation: bool = True
    trajectory: Literal["multi_sine", "point_to_point"] = "multi_sine"
    multi_sine: MultiSineParameters = msgspec.field(default_factory=MultiSineParameters)
    point_to_point: PointToPointParameters = msgspec.field(default_factory=PointToPointParameters)
    joint_states: str = "joint_states"
    joint_commands: str = "joint_commands"
    record: bool = True


class ServerParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Parameters of the server node: the URDF files it serves, how their root links move, the endpoint it binds."""

    robots: list[str]
    root: RootType = "fixed"
    endpoint: str = "tcp://127.0.0.1:5755"
