"""Queries about the server and its robots, with the role that each requires. `api/queries.py` lists the other queries.

Inputs and outputs are plain MessagePack values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType


class Role(IntEnum):
    """Permissions of a key; each role includes the lower ones.

    QUERY: send queries on robots. LOAD: load and unload robots. ADMIN: read the statistics of all clients.
    """

    QUERY = 1
    LOAD = 2
    ADMIN = 3


@dataclass(frozen=True)
class Administration:
    """One query, with the meaning of its inputs, options and outputs by name.

    names_robot: the request must have `robot`. slow: a worker executes it. changes: it changes the robots that are
    served, so clients do not retry it automatically. role: lowest role that allows it. required: mandatory inputs and
    options.
    """

    name: str
    summary: str
    names_robot: bool = False
    role: Role = Role.QUERY
    slow: bool = False
    changes: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()


_DESCRIPTION = {
    "name": "the robot's name",
    "fingerprint": "changes with anything that an answer depends on: send it as `model`",
    "nq": "length of `q`",
    "nv": "length of `v`, `a`, `tau`",
    "sizes": "the value of each dimension symbol in the shapes of inputs and outputs",
    "joint_names": "joints with entries in `q`, in their order: movable joints that mimic no other joint",
    "joint_types": "joint types, in the order of `joint_names`",
    "all_joint_names": "every URDF joint, fixed ones too: the rows of `constraint_forces`",
    "link_names": "every link, parents before children",
    "joints": "every joint in the order of `all_joint_names`: `name`, `type`, `parent` and `child` link (nil: the "
    "world), `axis` in the joint frame and `pitch` in m per turn of types that have them; `mimic` of a joint that "
    "follows another: its position is `multiplier` times that of `joint`, which has an entry in `q`, plus `offset`",
    "limits": "`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent",
    "gravity": "m/s^2, world axes: default of a request without `gravity`",
    "passive": "passive joint effects of the robot: any of `damping`, `friction`, `armature`, `springs`",
    "conventions": "conventions for quaternions, axes of velocities and the order of spatial vectors",
    "certificates": "by kernel compiled so far: `form`, `chosen frames` or `link frames`; `error`, its largest "
    "difference from its equations as a share of the rounding bound; `output`, the output with that error; `relative`, "
    "that difference divided by the output's largest entry; `states`, the number of states compared; `refused`, the "
    "error in chosen frames if that exceeded 1, or nil",
}
"""The fields of `api.description.RobotDescription`."""

ADMINISTRATION: Mapping[str, Administration] = MappingProxyType(
    {
        row.name: row
        for row in (
            Administration("list_robots", "Lists the loaded robots.", outputs={"robots": "names, sorted"}),
            Administration(
                "describe_robot",
                "Returns a robot's names, dimensions, limits and conventions.",
                names_robot=True,
                outputs=_DESCRIPTION,
            ),
            Administration(
                "load_robot",
                "Loads a robot under the name in its description. By default, servers that other machines can reach "
                "refuse this query. Loading a robot that is already loaded changes nothing.",
                slow=True,
                changes=True,
                role=Role.LOAD,
                inputs={"urdf": "content of a robot's file: URDF, MJCF or SDFormat, without includes"},
                options={
                    "root": "motion of the root link in the world: `fixed`, the default, `planar` or `floating`",
                    "mimic": "whether mimic joints follow their source joints: true, the default, or false",
                },
                required=("urdf",),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "overlay_robot",
                "Loads a copy of a robot with changed parameters, under a new name. All overlays of a robot share its "
                "kernels. It is refused under the same conditions as `load_robot`; repeating it changes nothing.",
                names_robot=True,
                slow=True,
                changes=True,
                role=Role.LOAD,
                inputs={
                    "overlay": "changed parameters of the robot, as in the inputs of its queries, without leading axes",
                    "name": "name of the copy, at most 256 characters",
                },
                options={"expires_s": "it is unloaded after so many seconds without use; nil, the default: never"},
                required=("overlay", "name"),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "unload_robot",
                "Unloads a robot.",
                names_robot=True,
                changes=True,
                role=Role.LOAD,
                outputs={"robot": "its name"},
            ),
            Administration(
                "health",
                "Reports whether the server is ready.",
                outputs={
                    "status": "always `ok`",
                    "ready": "whether it accepts work: its workers have started, and it is not shutting down",
                    "version": "version of the server's software",
                    "protocol": "supported protocol versions, a list",
                    "robots": "number of loaded robots",
                    "uptime_s": "seconds since the start",
                    "access": "`ok`; `no keys` if the server requires none; or why the list of keys admits no client",
                },
            ),
            Administration(
                "stats",
                "Returns the server's counters since its start.",
                role=Role.ADMIN,
                outputs={
                    "uptime_s": "seconds since the start",
                    "requests": "by query: the numbers of `answered` and `refused`; of the time from receipt to reply "
                    "in microseconds the quantiles `p50_us`, `p99_us`, `max_us` (to a power of two) and the sum "
                    "`total_us`; `buckets`, the k-th of which counts times from 2^(k-1) to below 2^k microseconds",
                    "errors": "number of errors by code",
                    "counters": "of the transport: messages, bytes, undeliverable replies, ..; `workers_lost`, workers "
                    "that exited unexpectedly; `defects`, internal errors, which the server logs",
                    "gauges": "current numbers of connections, queued bytes, workers, and the memory in use",
                    "limits": "the limits of this server, by name",
                },
            ),
        )
    }
)


def required_role(query: str) -> Role:
    """Returns the lowest role that may send this query; `Role.QUERY` for queries that are not in the table."""
    row = ADMINISTRATION.get(query)
    return Role.QUERY if row is None else row.role
