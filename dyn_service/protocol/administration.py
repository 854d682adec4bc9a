"""The queries about the server itself: which robots it serves, how it is. They stand beside the table of `queries.py`.

Their inputs and outputs are plain MessagePack values, not arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Administration:
    """One query: its name, what it does, and the meaning of what goes in and comes out, by name.

    names_robot: the request's `robot` says which robot is meant.
    """

    name: str
    summary: str
    names_robot: bool = False
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)


_DESCRIPTION = {
    "name": "the robot's name",
    "fingerprint": "changes whenever anything that an answer depends on changes: send it as `model`",
    "nq": "length of `q`",
    "nv": "length of `v`, `a`, `tau`",
    "joint_names": "the movable joints, in the order of `q`",
    "link_names": "every link, parent before child",
    "all_joint_names": "every URDF joint, fixed ones too: the rows of `constraint_forces`",
    "joint_types": "by joint, in the order of `all_joint_names`",
    "limits": "`lower`, `upper`, `velocity`, `effort`: lists in the order of `q`, nil where there is none",
    "gravity": "m/s^2, world axes: what a request without `gravity` means",
}

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
                inputs={"urdf": "the text of a URDF file"},
                outputs=_DESCRIPTION,
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
