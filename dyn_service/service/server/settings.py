"""What a server may be told, the same under `dyn serve` and under a launcher, in the shape of ROS 2's parameter files.

    server:                           # or /** for every node
      ros__parameters:
        robots: [../urdf/panda.urdf]  # from the file's own folder
        endpoints: ["tcp://127.0.0.1:5755"]

`dyn serve --config FILE` and launch files (`param: [{from: FILE}]`) read it; options of `dyn serve` replace its fields.
A name that is not here is a fault. A launcher reads this module, so it brings no engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import msgspec

from dyn_service.api.preparation import PURPOSES, chosen
from dyn_service.errors import InvalidArgumentError
from dyn_service.model.description import RootType
from dyn_service.service.protocol.defaults import DEFAULT_ENDPOINT
from dyn_service.service.protocol.limits import RequestLimits
from dyn_service.service.server.transport.endpoints import KeyPolicy, check_endpoint
from dyn_service.support.documents import read_document
from dyn_service.support.parameters import FilePath, InputFile, Parameters, RobotFile
from dyn_service.support.realtime import Realtime

NODE = "server"
"""The node that a parameter file speaks to when it speaks to `dyn serve`; launch files call it so by default too."""


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a server.

    robots: files of URDF, MJCF, SDFormat or xacro. joints: files on what robots' joints do by themselves, each for the
    robot that it names. root: how their root links move in the world. mimic: whether joints that mimic others follow
    them. endpoints: where to listen. allow_load: whether clients may load and unload robots; None: if nothing but this
    machine can reach the server. prepare: whether kernels are made before the first request, or the purposes and
    queries for which they are (see `preparation`). workers: how many processes do what is slow; 0 is a thread of the
    server's own. limits: what clients must keep. realtime: how the process is set apart. keys: whether they are asked
    for where other machines can reach the server, or `required` even on this one. keys_folder: where `dyn keys` keeps
    them; empty is its default. audit: the file that says who loaded and unloaded what; empty: only the log does.
    """

    robots: list[RobotFile] = []
    joints: list[InputFile] = []
    root: RootType = "fixed"
    mimic: bool = True
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
        if self.keys not in get_args(KeyPolicy):  # options of a command line come unchecked
            raise InvalidArgumentError(f"keys must be remote or required, found '{self.keys}'", path="keys")
        for endpoint in self.endpoints:
            check_endpoint(endpoint)
        if not 0 <= self.workers <= 64:
            raise InvalidArgumentError(f"workers must be a number from 0 to 64, found {self.workers}", path="workers")
        chosen(self.purposes)

    @property
    def purposes(self) -> list[str]:
        """For what kernels are made before the first request: names for `Robot.prepare`."""
        if isinstance(self.prepare, bool):
            return list(PURPOSES) if self.prepare else []
        return self.prepare


def read_settings(path: Path) -> ServerSettings:
    """The settings in a parameter file.

    Raises:
        NotFoundError: There is no such file.
        ConfigurationError: It is no parameter file, says nothing to a server, or says what a server does not know.
    """
    parameters, document = Parameters(), read_document(path)
    if not parameters.merge_file(document, NODE):
        raise document.fault(f"no section is for the server: name one '{NODE}', or '/**' for every node")
    return parameters.to(ServerSettings)
