"""The queries about the server itself and the robots it has, beside the table of `api/queries.py`.

Their inputs and outputs are plain MessagePack values. What a key must be allowed to do for which query stands here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType


class Role(IntEnum):
    """What a key may do; each role may what the ones before it may.

    QUERY: ask about robots. LOAD: load and unload them too. ADMIN: see what the server does for all others, too.
    """

    QUERY = 1
    LOAD = 2
    ADMIN = 3


@dataclass(frozen=True)
class Administration:
    """One query: its name, what it does, and the meaning of what goes in and comes out, by name.

    names_robot: the request's `robot` says which robot is meant. slow: it is work for a worker. changes: it
    changes what the server serves, so that no client sends it twice by itself. role: the least
    that a key must have. required: the inputs and options that
    may not be left out.
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
    "fingerprint": "changes whenever anything that an answer depends on changes: send it as `model`",
    "nq": "length of `q`",
    "nv": "length of `v`, `a`, `tau`",
    "sizes": "all dimensions that the shapes on this page speak of, by symbol",
    "joint_names": "the joints that have entries in `q`, in their order: those that move and follow no other",
    "joint_types": "of these, in the order of `joint_names`",
    "all_joint_names": "every URDF joint, fixed ones too: the rows of `constraint_forces`",
    "link_names": "every link, parent before child",
    "joints": "every joint in the order of `all_joint_names`: `name`, `type`, `parent` and `child` link (nil is the "
    "world), `axis` in the joint frame and `pitch` in m per turn of types that have them; `mimic` of one that follows "
    "another: its position is `multiplier` times that of `joint`, which has an entry in `q`, plus `offset`",
    "limits": "`lower`, `upper` in the order of `q`, `velocity`, `effort` in that of `v`, nil if absent",
    "gravity": "m/s^2, world axes: what a request without `gravity` means",
    "passive": "what its joints do by themselves: of `damping`, `friction`, `armature`, `springs`",
    "conventions": "what numbers mean where users differ: quaternions, axes of velocities, order of spatial vectors",
    "certificates": "by kernel made so far: `form`, `chosen frames` or `link frames`; `error`, its largest difference "
    "from its equations as a share of the rounding bound; `output`, the output with that error; `relative`, that "
    "difference beside the output's largest entry; `states`, the number of states compared; `refused`, the error in "
    "chosen frames where that exceeded 1, or nil",
}
"""The fields of `api.description.RobotDescription`."""

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
                changes=True,
                role=Role.LOAD,
                inputs={"urdf": "the text of a robot's file: URDF, MJCF or SDFormat, without includes"},
                options={
                    "root": "how the root link moves in the world: `fixed`, the default, `planar` or `floating`",
                    "mimic": "whether joints that mimic others follow them: true, the default, or false",
                },
                required=("urdf",),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "overlay_robot",
                "Serves a robot once more, otherwise than it was loaded, under a name of its own. Its kernels are "
                "those that all overlays of a robot share. Refused as `load_robot` is; doing it again changes nothing.",
                names_robot=True,
                slow=True,
                changes=True,
                role=Role.LOAD,
                inputs={
                    "overlay": "changed numbers of the robot, as in the inputs of its queries, without leading axes",
                    "name": "what it is called, in at most 256 characters",
                },
                options={"expires_s": "unused for so many seconds it is unloaded; nil, the default: never"},
                required=("overlay", "name"),
                outputs=_DESCRIPTION,
            ),
            Administration(
                "unload_robot",
                "Stops serving a robot.",
                names_robot=True,
                changes=True,
                role=Role.LOAD,
                outputs={"robot": "its name"},
            ),
            Administration(
                "health",
                "Says that the server answers.",
                outputs={
                    "status": "`ok`: it answers",
                    "ready": "whether it takes work: its workers are there, and it is not shutting down",
                    "version": "of the server's software",
                    "protocol": "the versions it speaks, a list",
                    "robots": "how many are served",
                    "uptime_s": "seconds since it started",
                    "access": "`ok`; `no keys` where none are asked for; or why the list of keys lets nobody in",
                },
            ),
            Administration(
                "stats",
                "What the server has done since it started.",
                role=Role.ADMIN,
                outputs={
                    "uptime_s": "seconds since it started",
                    "requests": "by query: how many `answered` and `refused`, and the quantiles in microseconds "
                    "`p50_us`, `p99_us`, `max_us` of the time from receipt to reply (to a power of two), "
                    "`total_us` their sum; `buckets` count them, the k-th those below 2^k microseconds and not below "
                    "half of that",
                    "errors": "by code: how many",
                    "counters": "of the transport: messages, bytes, replies that could not be delivered, ..; "
                    "`workers_lost` those that ended by themselves, `defects` the server's own faults, told in its log",
                    "gauges": "what stands at some number now: connections, bytes that wait, workers, memory",
                    "limits": "by name, what this server allows",
                },
            ),
        )
    }
)


def required_role(query: str) -> Role:
    """The least role that a key must have to ask this query; whatever is not here is asked about a robot."""
    row = ADMINISTRATION.get(query)
    return Role.QUERY if row is None else row.role
