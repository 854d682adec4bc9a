"""Runs a node as a process: its arguments, its parameters, its sockets, its exit status.

SIGINT and SIGTERM ask the node to stop; it leaves its loop, sends its recordings and returns 0. Within `stop.at_once()`
they end it immediately, with status 130 or 143. An error of this package ends it with one line on stderr and status 1,
or status 2 if the arguments or parameters are invalid and the node was never ready: restarting it is then useless. Any
other error ends it with its traceback and status 1.

In addition to its own parameters every node has `realtime` (`support/realtime.py`), `log_format` and `log_level`
(`support/logs.py`), and `autostart`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec
import zmq

from dyn_service.errors import (
    DynError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    UnimplementedError,
)
from dyn_service.graph.middleware import telemetry, topics
from dyn_service.graph.middleware.node import Context, Node, P
from dyn_service.graph.middleware.stop import Stop, end_with_launcher
from dyn_service.support import logs
from dyn_service.support.arguments import full_name, parse_arguments
from dyn_service.support.optional import MissingLibraryError
from dyn_service.support.parameters import Parameters
from dyn_service.support.realtime import Realtime, check

_LOG = logging.getLogger(__name__)
_WRONG = (InvalidArgumentError, NotFoundError, UnimplementedError, PermissionDeniedError, MissingLibraryError)
"""Errors that, before a node is ready, mean invalid parameters; a restart does not help."""


class CommonParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Parameters of every node.

    realtime: real-time settings of its process. log_format: of log lines; by default the launcher's, else text.
    log_level: lowest level to log; by default the launcher's, else info. autostart: whether a node that is a class
    activates itself, or waits for transitions.
    """

    realtime: Realtime = Realtime()
    log_format: logs.Format | None = None
    log_level: logs.Level | None = None
    autostart: bool = True


def typed(parameters: Parameters, kind: type[P]) -> tuple[CommonParameters, P]:
    """Returns the common parameters and the node's own. A name that the node declares is its own.

    Raises:
        ConfigurationError: A parameter is invalid; names file, line, parameter, found and expected value.
    """
    own = {field.encode_name for field in msgspec.structs.fields(kind)}
    names = {field.encode_name for field in msgspec.structs.fields(CommonParameters)} - own
    common, rest = parameters.divide(names)
    return common.to(CommonParameters), rest.to(kind)


def run_node(
    main: Callable[[Node[P]], None] | type[Node[P]],
    kind: type[P],
    default_name: str,
    argv: Sequence[str] | None = None,
    check_parameters: Callable[[P], None] = lambda parameters: None,
) -> int:
    """Runs a node, a function or a class, and returns the exit status. check_parameters: see `NodeKind.check`."""
    stop = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop.request)
    end_with_launcher()
    logs.set_up(full_name("/", default_name))
    try:
        arguments = parse_arguments(sys.argv[1:] if argv is None else argv, default_name=default_name)
        if arguments.rest:
            raise InvalidArgumentError(
                f"unknown argument {arguments.rest[0]!r}; parameters are given as name:=value, options after "
                "--ros-args, and --help lists them"
            )
        common, parameters = typed(arguments.parameters, kind)
        check_parameters(parameters)
    except DynError as error:
        _LOG.error("%s: %s", default_name, error)
        return 2
    logs.set_up(arguments.full_name, common.log_format, level=arguments.log_level or common.log_level)
    _LOG.debug("parameters: %s", json.dumps(msgspec.to_builtins(parameters)))
    with _context() as context:
        sender = telemetry.Telemetry(
            os.environ.get(telemetry.NODE, arguments.full_name), context, os.environ.get(telemetry.ENDPOINT)
        )
        node: Node[P] | None = None
        try:
            made = main if isinstance(main, type) else Node[P]
            node = made(arguments, parameters, sender, context, stop, topics.runtime_dir(), common.realtime)
            node.diagnosed = True
            sender.before_ready = node.begin
            check(common.realtime, polls=True)  # before anything slow is begun
            if isinstance(main, type):
                node.run(autostart=common.autostart)
            else:
                main(node)
        except DynError as error:
            _LOG.error("%s: %s", arguments.full_name, error)
            sender.fault(str(error))
            return 1 if sender.was_ready or not isinstance(error, _WRONG) else 2
        except Exception as error:  # noqa: BLE001  any error is reported to the launcher
            _LOG.exception("%s ended", arguments.full_name)
            sender.fault(f"{type(error).__name__}: {error}")
            return 1
        finally:
            if node is not None:
                node.close()
            sender.close()
    return 0


@contextlib.contextmanager
def _context() -> Iterator[Context]:
    context: Context = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=2000)
