"""What `dyn serve --config FILE` may say, in the shape of ROS 2's parameter files.

    dyn_server:                       # or /** for every node
      ros__parameters:
        robots: [../urdf/panda.urdf]  # from the file's own folder
        endpoints: ["tcp://127.0.0.1:5755"]

The file is read by `nodes.parameters`; a name that is not here is a fault.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from dyn_service.api.preparation import PURPOSES, chosen
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import RootType
from dyn_service.protocol.defaults import DEFAULT_ENDPOINT
from dyn_service.protocol.limits import RequestLimits
from dyn_service.server.endpoints import check_endpoint

NODE = "/dyn_server"
"""The name under which a parameter file speaks to the server."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server.

    robots: URDF files. root: how their root links move in the world. endpoints: where to listen. allow_load: whether
    clients may load and unload robots; None: if nothing but this machine can reach the server. prepare: whether kernels
    are made before the first request, or the purposes and queries for which they are (see `preparation`). limits: what
    clients must keep.
    """

    robots: list[str] = []
    root: RootType = "fixed"
    endpoints: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_ENDPOINT])
    allow_load: bool | None = None
    prepare: bool | list[str] = True
    limits: RequestLimits = RequestLimits()

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidArgumentError("endpoints must name at least one endpoint, found none", path="endpoints")
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        chosen(self.purposes)

    @property
    def purposes(self) -> list[str]:
        """For what kernels are made before the first request: names for `Robot.prepare`."""
        if isinstance(self.prepare, bool):
            return list(PURPOSES) if self.prepare else []
        return self.prepare

    def below(self, folder: Path) -> ServerSettings:
        """The same with the paths of robots taken from a folder."""
        return msgspec.structs.replace(self, robots=[str(folder / robot) for robot in self.robots])
