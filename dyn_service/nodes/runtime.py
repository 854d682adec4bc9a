"""The frame of a node's process: its arguments, its parameters, its sockets, and how it ends.

SIGINT and SIGTERM ask the node to stop; it leaves its loop, sends what it recorded and returns 0. While it does what
takes long and can be left, within `stop.at_once()`, they end it there and then, with status 130 or 143. An error of
this package ends it with one line on stderr and status 1, any other error with its traceback and status 1.

Beside its own parameters every node takes `realtime` (`config/realtime.py`) and `log_format` (`config/logs.py`).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Generic, TypeVar

import msgspec
import zmq

from dyn_service.config import logs
from dyn_service.config.arguments import NodeArguments, full_name, parse_arguments
from dyn_service.config.parameters import Parameters
from dyn_service.config.realtime import Realtime, apply, check
from dyn_service.errors import DynError, InvalidArgumentError
from dyn_service.nodes import telemetry, topics

P = TypeVar("P", bound=msgspec.Struct)
Context = zmq.Context[zmq.Socket[bytes]]
_LOG = logging.getLogger(__name__)


class CommonParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What every node takes. realtime: how its process is set apart. log_format: None is what the launcher was told."""

    realtime: Realtime = Realtime()
    log_format: logs.Format | None = None


def typed(parameters: Parameters, kind: type[P]) -> tuple[CommonParameters, P]:
    """The parameters that every node takes, and the node's own. A name that the kind itself declares is its own.

    Raises:
        ConfigurationError: It names the file, the line, the parameter, what was found and what was expected.
    """
    own = {field.encode_name for field in msgspec.structs.fields(kind)}
    names = {field.encode_name for field in msgspec.structs.fields(CommonParameters)} - own
    common, rest = parameters.divide(names)
    return common.to(CommonParameters), rest.to(kind)


class Stop:
    """Whether the node was asked to stop."""

    def __init__(self) -> None:
        self.requested = False
        self._ends_at_once = False
        self._signum = int(signal.SIGTERM)

    def request(self, signum: int = 0, frame: FrameType | None = None) -> None:
        """Asks the node to stop; also a signal handler."""
        self.requested = True
        self._signum = signum or self._signum
        if self._ends_at_once:
            os._exit(128 + self._signum)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it the process ends as soon as it is asked to: for what can be left as it is, such as compiling."""
        self._ends_at_once = True
        if self.requested:
            os._exit(128 + self._signum)
        yield
        self._ends_at_once = False


@dataclass
class Node(Generic[P]):
    """A node at work."""

    arguments: NodeArguments
    parameters: P
    telemetry: telemetry.Telemetry
    context: Context
    stop: Stop
    runtime_dir: Path
    realtime: Realtime = field(default_factory=Realtime)
    started_s: float = field(default_factory=time.monotonic)
    _polls: bool = False

    @property
    def name(self) -> str:
        """The node's full name."""
        return self.arguments.full_name

    @property
    def restarted(self) -> bool:
        """Whether a launcher has started it again, after a death, rather than a person."""
        return os.environ.get(telemetry.RESTARTS, "0") != "0"

    def endpoint(self, topic: str) -> str:
        """The endpoint of a topic in this node's namespace."""
        return topics.endpoint(topic, self.arguments.namespace, self.arguments.remaps, self.runtime_dir)

    def socket(self, kind: int, topic: str, *, bind: bool, conflate: bool = True) -> zmq.Socket[bytes]:
        """A socket on a topic that keeps only the newest message, with nothing lingering when it closes."""
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if conflate:
            socket.setsockopt(zmq.CONFLATE, 1)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        where = self.endpoint(topic)
        try:
            if bind:
                topics.listen(socket, where)
            else:
                socket.connect(where)
        except zmq.ZMQError as error:
            socket.close()
            raise InvalidArgumentError(f"topic {topic!r} at {where!r}: {error.strerror}") from None
        return socket

    def beat(self, busy_s: float = 0.0) -> None:
        """Says that the main loop goes on; see `Telemetry.beat`."""
        self.telemetry.beat(busy_s)

    def busy_poll_s(self) -> float:
        """For how long the node's loop is to poll before it sleeps; a node that asks for it, does so."""
        self._polls = True
        return self.realtime.busy_poll_us * 1e-6

    def set_apart(self) -> None:
        """Does what the parameter `realtime` asks for, and says so.

        Raises:
            PermissionDeniedError: The system refuses a part that is required.
        """
        done = apply(self.realtime, _LOG.warning, polls=self._polls)
        if done:
            _LOG.info(done)
            self.telemetry.facts({"realtime": done})

    def freeze_garbage_collector(self) -> None:
        """Puts what exists so far out of the collector's sight, so that its runs stay short."""
        gc.collect()
        gc.freeze()


def run_node(
    main: Callable[[Node[P]], None], kind: type[P], default_name: str, argv: Sequence[str] | None = None
) -> int:
    """Runs a node to its end; the exit status."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop.request)
    logs.set_up(full_name("/", default_name))
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv, default_name=default_name)
        if arguments.rest:
            raise InvalidArgumentError(f"unknown argument {arguments.rest[0]!r}; options stand after --ros-args")
        common, parameters = typed(arguments.parameters, kind)
    except DynError as error:
        _LOG.error("%s: %s", default_name, error)
        return 2
    logs.set_up(arguments.full_name, common.log_format)
    with _context() as context:
        sender = telemetry.Telemetry(
            os.environ.get(telemetry.NODE, arguments.full_name), context, os.environ.get(telemetry.ENDPOINT)
        )
        try:
            node = Node(arguments, parameters, sender, context, stop, topics.runtime_dir(), common.realtime)
            sender.before_ready = node.set_apart
            check(common.realtime, polls=True)  # what takes long is not begun where its end would be refused
            main(node)
        except DynError as error:
            _LOG.error("%s: %s", arguments.full_name, error)
            sender.fault(str(error))
            return 1
        except Exception as error:  # noqa: BLE001  the launcher shall learn of any end
            _LOG.exception("%s ended", arguments.full_name)
            sender.fault(f"{type(error).__name__}: {error}")
            return 1
        finally:
            sender.close()
    return 0


@contextlib.contextmanager
def _context() -> Iterator[Context]:
    context: Context = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=2000)
