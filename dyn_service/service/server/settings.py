"""Parameters of a server, for `dyn serve` and launch files, in the format of ROS 2 parameter files.

    server:                           # or /** for every node
      ros__parameters:
        robots: [../urdf/panda.urdf]  # relative to the file's folder
        endpoints: ["tcp://127.0.0.1:5755"]

Read by `dyn serve --config FILE` and by launch files (`param: [{from: FILE}]`); options of `dyn serve` override its
values. Unknown names are errors. This module imports no engine, because the launcher imports it.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec

from dyn_service.api.preparation import PURPOSES, chosen
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import LoopHandling, RootType
from dyn_service.service.protocol.limits import DEFAULT_ENDPOINT, RequestLimits
from dyn_service.service.server.transport.endpoints import KeyPolicy, check_endpoint
from dyn_service.support.documents import read_document
from dyn_service.support.parameters import FilePath, InputFile, Parameters, RobotFile
from dyn_service.support.realtime import Realtime

NODE = "server"  # name of the section for `dyn serve`, and default name of the node in launch files


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a server.

    robots: robot files in URDF, MJCF, SDFormat or xacro. joints: joint files, each for the robot that it names; empty
    for no file. root: how root links move in the world. mimic: whether mimic joints follow their joint. loops:
    `cut` serves the tree that is left of closed loops. endpoints: where to listen. allow_load: whether clients may load
    and unload robots; None: if only this machine can reach the server. prepare: whether kernels are compiled before the
    first request, or for which purposes and queries (see `preparation`). workers: number of processes for slow
    requests; 0 is one thread of the server. limits: limits on requests. realtime: scheduling and memory locking of the
    process. keys: where keys are required: `remote`, if other machines can reach the endpoint, or `required`, on this
    machine too. keys_folder: the folder of `dyn keys`; empty is its default. audit: file of the audit log; empty:
    changes are only logged.
    """

    robots: list[RobotFile] = []
    joints: list[InputFile] = []
    root: RootType = "fixed"
    mimic: bool = True
    loops: LoopHandling = "closed"
    endpoints: list[str] = msgspec.field(default_factory=lambda: [DEFAULT_ENDPOINT])
    allow_load: bool | None = None
    prepare: bool | list[str] = True
    workers: int = 2
    limits: RequestLimits = RequestLimits()
    realtime: Realtime = Realtime()
    keys: KeyPolicy = "remote"
    keys_folder: FilePath = ""
    audit: FilePath = ""

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise InvalidArgumentError("endpoints must name at least one endpoint, found none", path="endpoints")
        if self.keys not in get_args(KeyPolicy):  # command-line options are not checked by msgspec
            raise InvalidArgumentError(f"keys must be remote or required, found '{self.keys}'", path="keys")
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        if not 0 <= self.workers <= 64:
            raise InvalidArgumentError(f"workers must be a number from 0 to 64, found {self.workers}", path="workers")
        chosen(self.purposes)

    @property
    def purposes(self) -> list[str]:
        """Purposes and queries to compile before the first request: names for `Robot.prepare`."""
        if isinstance(self.prepare, bool):
            return list(PURPOSES) if self.prepare else []
        return self.prepare


def read_settings(path: Path) -> ServerSettings:
    """Returns the settings in a parameter file.

    Raises:
        NotFoundError: The file does not exist.
        ConfigurationError: It is not a parameter file, has no section for a server, or has unknown parameters.
    """
    parameters, document = Parameters(), read_document(path)
    if not parameters.merge_file(document, NODE):
        raise document.fault(f"no section is for the server: name one '{NODE}', or '/**' for every node")
    return parameters.to(ServerSettings)
