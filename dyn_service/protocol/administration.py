"""The queries beside the table of `queries.py`: about the server itself, and its longer computations.

Their inputs and outputs are plain MessagePack values, except where the text says array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import get_args

from dyn_service.api.queries import Integrator
from dyn_service.protocol.defaults import MAX_RHEONOMIC_STEPS, MAX_STEPS


@dataclass(frozen=True)
class Administration:
    """One query: its name, what it does, and the meaning of what goes in and comes out, by name.

    names_robot: the request's `robot` says which robot is meant. slow: it is work for the worker thread. required: the
    inputs and options that may not be left out. An input that is an array says so first: `array (.., n, 3), N`.
    """

    name: str
    summary: str
    names_robot: bool = False
    slow: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_INTEGRATORS = get_args(Integrator)
_DESCRIPTION = {
    "name": "the robot's name",
    "fingerprint": "changes whenever anything that an answer depends on changes: send it as `model`",
    "nq": "length of `q`",
    "nv": "length of `v`, `a`, `tau`",
    "joint_names": "the movable joints, in the order of `q`",
    "link_names": "every link, parent before child",
    "all_joint_names": "every URDF joint, fixed ones too: the rows of `constraint_forces`",
    "joint_types": "by movable joint, in the order of `joint_names`",
    "limits": "`lower`, `upper`, `velocity`, `effort`: lists in the order of `q`, nil where there is none",
    "gravity": "m/s^2, world axes: what a request without `gravity` means",
    "certificates": "by kernel made so far: `form`, `chosen frames` or `link frames`; `error`, its largest difference "
    "from the tree as given as a share of what rounding explains; `states`, at how many it was compared; `refused`, "
    "the error of a form that was not kept, or nil",
}

_SEGMENTS = {
    "mass": "array (n), kg",
    "inertia": "array (n, 3, 3), kg m^2, about the centre of mass, in the segment's basis",
    "rotation": "array (.., n, 3, 3), global components to the segment's",
    "acceleration": "array (.., n, 3), m/s^2, of the centres of mass, global basis",
    "omega": "array (.., n, 3), rad/s, segment's basis",
    "omega_dot": "array (.., n, 3), rad/s^2, segment's basis",
    "proximal": "array (.., n, 3), m, centre of mass to upper joint, global basis",
    "distal": "array (.., n, 3), m, to the lower joint; of the first segment to the centre of pressure",
    "ground_force": "array (.., 3), N, on the first segment, global basis; none if left out",
    "ground_moment": "array (.., 3), N m, free moment, global basis; none if left out",
    "external_force": "array (.., n, 3), N, another load on each segment, global basis; none if left out",
    "external_moment": "array (.., n, 3), N m, with it, global basis; none if left out",
    "external_point": "array (.., n, 3), m, centre of mass to where it acts, global basis; 0 if left out",
    "gravity": "array (3), m/s^2, global basis; (0, -9.81, 0) if left out",
}

_SEGMENTS_NEED = ("mass", "inertia", "rotation", "acceleration", "omega", "omega_dot", "proximal", "distal")

ADMINISTRATION: Mapping[str, Administration] = MappingProxyType(
    {
        row.name: row
        for row in (
            Administration("list_robots", "The robots that are served.", outputs={"robots": "names, sorted"}),
            Administration(
                "describe_robot", "What a client must know of a robot.", names_robot=True, outputs=_DESCRIPTION
            ),
            Administration(
                "load_robot",
                "Serves one more robot, under the name in its description. Servers that are reachable from other "
                "machines refuse this unless told otherwise. Loading what is already served changes nothing.",
                slow=True,
                inputs={"urdf": "the text of a URDF file"},
                options={"root": "how the root link moves in the world: `fixed`, the default, `planar` or `floating`"},
                required=("urdf",),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "simulate",
                "The motion of a robot under efforts, on a grid of times. A request takes a limited number of steps; a "
                "longer motion comes in parts, each from the last state of the one before: its `q`, `v`, and `p` where "
                "there is one.",
                names_robot=True,
                slow=True,
                required=("q", "v", "dt", "steps"),
                inputs={
                    "q": "array (.., nq), first positions",
                    "v": "array (.., nv), first velocities",
                    "p": "array (.., nv), first momenta in place of those of `v`; of `implicit_midpoint` alone",
                    "tau": "array (nv) or (.., steps, nv), efforts, each held for one step; none if left out",
                    "gravity": "array (3), m/s^2, world axes",
                    "wrenches": "map or list of maps; torque, force and point are arrays (3) or (.., steps, 3), each "
                    "held for one step in the axes of `frame`",
                    "payload": "map: a body that the link named `link` carries, of `mass` in kg, `com` array (3), m, "
                    "in the link's frame, and `inertia` array (3, 3), kg m^2, about it in the link's axes; zeros if "
                    "left out",
                },
                options={
                    "dt": "s, of a step; required",
                    "steps": f"how many, at most {MAX_STEPS}; 0 asks for `a` alone; required",
                    "method": "`articulated` or `mass_matrix`",
                    "integrator": f"{', '.join(f'`{name}`' for name in _INTEGRATORS[:-1])} or `{_INTEGRATORS[-1]}`",
                    "every": "record every so many steps; 1 if left out",
                    "first_step": "the number of the first step in the whole motion, of which this is a part: times "
                    "go on from there; 0 if left out",
                },
                outputs={
                    "t": "array (K), s",
                    "q": "array (.., K, nq)",
                    "v": "array (.., K, nv)",
                    "p": "array (.., K, nv), generalised momenta; of `implicit_midpoint` alone",
                    "a": "array (.., nv), accelerations at `q`, `v`; where `steps` is 0 this and `finite` are all, "
                    "for clients that do the steps themselves",
                    "finite": "array (.., nv), 1, or 0 where an acceleration overflows and `a` says 0",
                },
            ),
            Administration(
                "simulate_rheonomic",
                "The motion of a robot while some of its joints move as given. The given motion stands in rows on the "
                "half grid: row 2k at step k, row 2k + 1 half a step later; or on the grid alone: then what lies half "
                "a step later is that of the quintic through position, velocity and acceleration at both ends. A step "
                "is RK4's, with rows 2k, 2k + 1, 2k + 1, 2k + 2 at its stages. A longer motion comes in parts, each "
                "from the free joints' entries of the last state of the one before.",
                names_robot=True,
                slow=True,
                required=("q", "v", "prescribed", "joints", "dt", "steps"),
                inputs={
                    "q": "array (.., nf), first positions of the free joints, in the order of `joint_names`",
                    "v": "array (.., nf), first velocities of the free joints",
                    "tau": "array (nf), (.., 1, nf) or (.., steps, nf), efforts of the free joints, each held for one "
                    "step; none if left out",
                    "prescribed": "array (.., 2 steps + 1, np, 3) or (.., steps + 1, np, 3), position, velocity, "
                    "acceleration of the joints in `joints`",
                    "gravity": "array (3), m/s^2, world axes",
                    "wrenches": "map or list of maps, external wrenches on links, see `Wrench`, all through the motion",
                },
                options={
                    "joints": "list of np names: the prescribed joints; required",
                    "dt": "s, of a step; required",
                    "steps": f"how many, at most {MAX_RHEONOMIC_STEPS}; required",
                    "t0": "s, the time of step 0; 0 if left out",
                    "first_step": "steps that were made before these: times go on from there; 0 if left out",
                    "every": "record every so many steps; 1 if left out",
                },
                outputs={
                    "t": "array (K), s",
                    "q": "array (.., K, nq), of all joints",
                    "v": "array (.., K, nv)",
                    "a": "array (.., K, nv)",
                    "tau": "array (.., K, nv), of the prescribed joints what makes them move so",
                },
            ),
            Administration(
                "segment_inverse_dynamics",
                "Forces and moments at the joints of a chain of n measured segments, from the ground up.",
                slow=True,
                required=_SEGMENTS_NEED,
                inputs=_SEGMENTS,
                options={"method": "`recursion` or `matrix`"},
                outputs={
                    "force": "array (.., n, 3), N, at the upper joints, global basis",
                    "moment": "array (.., n, 3), N m, at the upper joints, segment's basis",
                },
            ),
            Administration(
                "segment_matrices",
                "The matrices of the same equations, M q-ddot = C + G + Q + E with Q = A [F_1; M_1; F_2; ..], and "
                "their solution. Rows and columns: three of the first segment's force (global basis), three of its "
                "moment (segment's basis), then the next segment's.",
                slow=True,
                required=_SEGMENTS_NEED,
                inputs=_SEGMENTS,
                outputs={
                    "mass_matrix": "array (6n, 6n), M: masses and inertias on the diagonal",
                    "acceleration": "array (.., 6n), q-ddot",
                    "velocity_forces": "array (.., 6n), C",
                    "gravity_forces": "array (.., 6n), G",
                    "external_forces": "array (.., 6n), E: the ground and other loads from outside",
                    "efforts": "array (.., 6n), Q = M q-ddot - C - G - E",
                    "load_matrix": "array (.., 6n, 6n), A",
                    "loads": "array (.., 6n), A^-1 Q: what `segment_inverse_dynamics` answers, stacked",
                },
            ),
            Administration("unload_robot", "Stops serving a robot.", names_robot=True, outputs={"robot": "its name"}),
            Administration(
                "health",
                "Says that the server answers.",
                outputs={
                    "status": "`ok`",
                    "version": "of the server's software",
                    "protocol": "the versions it speaks, a list",
                    "robots": "how many are served",
                    "uptime_s": "seconds since it started",
                },
            ),
            Administration(
                "stats",
                "What the server has done since it started.",
                outputs={
                    "uptime_s": "seconds since it started",
                    "requests": "by query: how many `answered` and `refused`, and the quantiles in microseconds "
                    "`p50_us`, `p99_us`, `max_us` of the time from receipt to reply (to a power of two)",
                    "errors": "by code: how many",
                    "counters": "of the transport: messages, bytes, replies that could not be delivered, ..",
                },
            ),
        )
    }
)
