"""`Node`: topics, timers, services, parameters and lifecycle of a node, and its process.

    class Thermometer(Node[ThermometerParameters]):
        def on_configure(self) -> None:
            self.out = self.create_publisher(Temperature, "temperature")
            self.create_timer(0.02, self.measure)

One thread does everything (`Executor`): `spin_once` waits until something is due and does it, `spin` repeats this until
the node is asked to stop. A node with its own loop calls `spin_once()` in each turn, which then does not wait.

**Standard services** of every node, such as `/arm/plant/get_parameters`: its parameters, its lifecycle, its
log level.

Only parameters whose field is marked `settable` can be set while a node runs. The lifecycle is that of ROS 2's managed
nodes:

                 configure              activate
    unconfigured ─────────► inactive ◄──────────► active
                 ◄─────────          deactivate
                  cleanup                            any ── shutdown ─► finalized

Timers, callbacks and publishers work only while a node is active; services always do.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec
import zmq

from dyn_service.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, UnavailableError
from dyn_service.graph.middleware import dyn_service_srvs as srvs
from dyn_service.graph.middleware import telemetry, topics
from dyn_service.graph.middleware.graph import End, Graph, NodeEntry, Registration, new_token
from dyn_service.graph.middleware.pacing import Timer
from dyn_service.graph.middleware.pubsub import QUEUE, Publisher, Subscription
from dyn_service.graph.middleware.services import ServiceClient, Services
from dyn_service.graph.middleware.stop import Stop
from dyn_service.graph.middleware.zmq_sockets import Context
from dyn_service.messages import Message, ros_type
from dyn_service.messages.builtin_interfaces import Time
from dyn_service.messages.diagnostic_msgs import DiagnosticArray, DiagnosticStatus, KeyValue
from dyn_service.messages.std_msgs import Header
from dyn_service.support.arguments import NodeArguments
from dyn_service.support.parameter_descriptions import described
from dyn_service.support.parameters import converted, not_finite
from dyn_service.support.realtime import Realtime, apply
from dyn_service.support.suggestions import did_you_mean


def flat(parameters: msgspec.Struct) -> dict[str, Any]:
    """Returns the values by the names of `described`, as in YAML."""
    values = msgspec.to_builtins(parameters)
    names = [descriptor.name for descriptor in described(type(parameters))]
    return {name: reduce(getitem, name.split("."), values) for name in names}


def with_values(parameters: P, changes: Mapping[str, Any], node: str) -> P:
    """Returns the parameters with some values replaced and checked."""
    kind = type(parameters)
    descriptors = {descriptor.name: descriptor for descriptor in described(kind)}
    values = msgspec.to_builtins(parameters)
    for name, value in changes.items():
        descriptor = descriptors.get(name)
        if descriptor is None:
            raise unknown(name, descriptors, node)
        if not descriptor.settable:
            raise FailedPreconditionError(
                f"parameter {name!r} of node {node!r} is read-only while it runs: set it at the start", path=name
            )
        if any(not_finite(value)):
            raise InvalidArgumentError(f"parameter {name!r} is not finite", path=name)
        *parents, last = name.split(".")
        reduce(getitem, parents, values)[last] = value
    return converted(values, kind)


def unknown(name: str, names: Collection[str], node: str) -> InvalidArgumentError:
    """Returns the error for a parameter that the node does not have."""
    hint = did_you_mean(name, names) or (f"; it has {', '.join(names)}" if names else "; it has none")
    return InvalidArgumentError(f"node {node!r} has no parameter {name!r}{hint}", path=name)


def standard_services(node: Node[Any]) -> dict[str, tuple[type[msgspec.Struct], Handler]]:
    """Returns the type of requests and the handler of the services of every node, by the service's name."""
    kind: type[msgspec.Struct] = type(node.parameters)
    descriptors = {descriptor.name: descriptor for descriptor in described(kind)}

    def selected(names: list[str], values: dict[str, Any]) -> dict[str, Any]:
        for name in names:
            if name not in values:
                raise unknown(name, values, node.name)
        return {name: values[name] for name in names} if names else values

    def state() -> srvs.GetStateResponse:
        return srvs.GetStateResponse(node.state, possible(node.state) if node.managed else [])

    def change_state(request: srvs.ChangeStateRequest) -> srvs.GetStateResponse:
        node.change_state(request.transition)
        return state()

    def set_level(request: srvs.SetLogLevelRequest) -> None:
        logging.getLogger(request.logger or None).setLevel(request.level.upper())

    return {
        "list_parameters": (
            srvs.ListParametersRequest,
            lambda request: srvs.ListParametersResponse(list(descriptors)),
        ),
        "describe_parameters": (
            srvs.DescribeParametersRequest,
            lambda request: srvs.DescribeParametersResponse(list(selected(request.names, descriptors).values())),
        ),
        "get_parameters": (
            srvs.GetParametersRequest,
            lambda request: srvs.GetParametersResponse(selected(request.names, flat(node.parameters))),
        ),
        "set_parameters": (srvs.SetParametersRequest, lambda request: node.set_parameters(request.values)),
        "get_state": (srvs.GetStateRequest, lambda request: state()),
        "change_state": (srvs.ChangeStateRequest, change_state),
        "set_log_level": (srvs.SetLogLevelRequest, set_level),
    }


UNCONFIGURED, INACTIVE, ACTIVE, FINALIZED = "unconfigured", "inactive", "active", "finalized"


class Transition(NamedTuple):
    """A transition between states."""

    sources: tuple[str, ...]
    target: str


TRANSITIONS = {
    "configure": Transition((UNCONFIGURED,), INACTIVE),
    "activate": Transition((INACTIVE,), ACTIVE),
    "deactivate": Transition((ACTIVE,), INACTIVE),
    "cleanup": Transition((INACTIVE,), UNCONFIGURED),
    "shutdown": Transition((UNCONFIGURED, INACTIVE, ACTIVE), FINALIZED),
}


def possible(state: str) -> list[str]:
    """Returns the transitions that are possible in a state."""
    return [name for name, transition in TRANSITIONS.items() if state in transition.sources]


def checked(name: str, state: str, node: str) -> Transition:
    """Returns the transition with this name."""
    transition = TRANSITIONS.get(name)
    if transition is None:
        hint = did_you_mean(name, TRANSITIONS)
        raise InvalidArgumentError(f"there is no transition {name!r}: expected one of {', '.join(TRANSITIONS)}{hint}")
    if state not in transition.sources:
        ways = ", ".join(possible(state)) or "none"
        raise FailedPreconditionError(f"node {node!r} is {state}: {name!r} is not possible there; possible: {ways}")
    return transition


TOPIC = "/diagnostics"
PERIOD_S = 1.0
"""Period of diagnostics messages."""


def diagnostics(name: str, state: str, stats: Mapping[str, float | int | str]) -> DiagnosticArray:
    """Returns the diagnostics of a node: its latest stats, with level WARN if it is not active."""
    level = DiagnosticStatus.OK if state == ACTIVE else DiagnosticStatus.WARN
    values = [KeyValue(key, f"{value:g}" if isinstance(value, float) else str(value)) for key, value in stats.items()]
    stamp = Time.from_nanoseconds(time.time_ns())
    return DiagnosticArray(Header(stamp), [DiagnosticStatus(level, name, state, "", values)])


P = TypeVar("P", bound=msgspec.Struct)
M = TypeVar("M", bound=Message)
Q = TypeVar("Q", bound=msgspec.Struct)
R = TypeVar("R")
Handler = Callable[[Any], msgspec.Struct | None]
_LOG = logging.getLogger(__name__)


class Node(Generic[P]):
    """A node at work.

    name: its full name. parameters: the present ones; the whole struct is replaced when some are set. graph: the other
    nodes. diagnosed: whether it publishes on `/diagnostics`, as every node with its own process does. answers_at: the
    endpoints of its dynamics server, if it is one; see `say_answers_at`. A subclass overrides `on_configure`,
    `on_activate`, `on_deactivate` or `on_cleanup` as needed; it creates topics, timers and services in `on_configure`,
    which are closed after `on_cleanup`.

    Raises:
        InvalidArgumentError: The name is not valid.
        UnavailableError: It cannot be registered in the runtime folder.
        PermissionDeniedError: That folder belongs to another user, or others can write to it.
    """

    def __init__(
        self,
        arguments: NodeArguments,
        parameters: P,
        sender: telemetry.Telemetry,
        context: Context,
        stop: Stop,
        runtime_dir: Path,
        realtime: Realtime | None = None,
    ) -> None:
        self.name = arguments.full_name
        topics.check_name("node", self.name)
        self.telemetry, self.realtime = sender, realtime or Realtime()
        self._polls = False
        self.arguments, self.parameters, self.context = arguments, parameters, context
        self.stop, self.runtime_dir = stop, runtime_dir
        self.diagnosed = False
        self.answers_at: tuple[str, ...] = ()
        # a node that is a function has no hooks, so no lifecycle: it is active from the start
        self.managed = type(self) is not Node
        self.state = UNCONFIGURED
        self.graph = Graph(runtime_dir)
        self._check: Callable[[P, P], None] = lambda old, new: None
        self._executor = Executor(self.graph)
        self._executor.active = not self.managed
        self._own_services: list[str] = []
        self._token = new_token()
        self._registration = Registration(runtime_dir, self._entry())
        # only a warning: a restarted node may overlap with the one it replaces, and sockets have the token in their
        # names
        for other in self.graph.nodes():
            if other.name == self.name and other.token != self._token:
                _LOG.warning("node %s: process %d has a node of this name too", self.name, other.pid)

    @classmethod
    def alone(cls, name: str, parameters: P, folder: Path, context: Context) -> Self:
        """Returns a node with this full name without its own process, for tests and tools."""
        namespace, _, base_name = name.rpartition("/")
        arguments = NodeArguments(base_name, namespace or "/")
        sender = telemetry.Telemetry(arguments.full_name, context, None)
        return cls(arguments, parameters, sender, context, Stop(), folder)

    # --- its process

    @property
    def duration_s(self) -> float:
        """Duration of the launch, s; infinite without one."""
        return float(os.environ.get(telemetry.DURATION, "inf"))

    @property
    def restarted(self) -> bool:
        """Whether a launcher has restarted the node after it died."""
        return os.environ.get(telemetry.RESTARTS, "0") != "0"

    def beat(self, busy_s: float = 0.0) -> None:
        """Sends a heartbeat; see `Telemetry.beat`."""
        self.telemetry.beat(busy_s)

    def busy_poll_s(self) -> float:
        """Returns the time for which the node's loop polls before it sleeps; a node that calls this must do so."""
        self._polls = True
        return self.realtime.busy_poll_us * 1e-6

    def apply_realtime(self) -> None:
        """Applies the parameter `realtime`, and logs what was done.

        Raises:
            PermissionDeniedError: The system refuses a part that is required.
        """
        done = apply(self.realtime, _LOG.warning, polls=self._polls)
        if done:
            _LOG.info(done)
            self.telemetry.facts({"realtime": done})

    def freeze_garbage_collector(self) -> None:
        """Excludes existing objects from garbage collection, so that collections stay short."""
        gc.collect()
        gc.freeze()

    # --- topics, timers, services

    def create_publisher(
        self,
        kind: type[M],
        topic: str,
        *,
        name: str = "",
        queue: int = QUEUE,
        latched: bool = False,
        binds: bool = True,
    ) -> Publisher[M]:
        """Creates a publisher; see `Publisher`.

        Args:
            kind: The type of its messages.
            topic: Its name in the node's namespace, or an endpoint such as `tcp://127.0.0.1:7001`.
            name: The name under which others find it if `topic` is an endpoint.
            queue: Messages that may wait for one subscriber; further ones are dropped for it.
            latched: Whether late subscribers get the last message.
            binds: Whether the publisher binds to a given endpoint, or connects to it.

        Raises:
            InvalidArgumentError: The name is empty, or the endpoint cannot be bound.
        """
        full_name, explicit_endpoint = self._place(topic, name)
        endpoint = topics.socket_file(f"{full_name}@{self.name[1:]}.{self._token}", self.runtime_dir)
        end = End(full_name, ros_type(kind), endpoint)
        publisher = Publisher(
            self.context, kind, end, queue=queue, latched=latched, explicit_endpoint=explicit_endpoint, binds=binds
        )
        publisher.muted = self.managed and self.state != ACTIVE
        self._executor.publishers.append(publisher)
        self._changed()
        return publisher

    def create_subscription(
        self,
        kind: type[M],
        topic: str,
        callback: Callable[[M], object] | None = None,
        *,
        name: str = "",
        queue: int = 1,
        binds: bool = False,
    ) -> Subscription[M]:
        """Creates a subscription to all present and future publishers of a topic; see `Subscription`.

        Args:
            kind: The type of its messages; publishers of another type are logged once.
            topic: Its name in the node's namespace, or an endpoint such as `tcp://127.0.0.1:7001`.
            callback: Called by `spin_once` with each message; without one, call `take`.
            name: The name under which it is listed if `topic` is an endpoint.
            queue: 1 keeps only the newest message of each publisher; n keeps n of each.
            binds: Whether it binds to a given endpoint, or connects to it.

        Raises:
            InvalidArgumentError: The name is empty, `queue` is not positive, or the endpoint cannot be bound.
        """
        full_name, explicit_endpoint = self._place(topic, name)
        subscription = Subscription(
            self.context, kind, full_name, callback, queue, explicit_endpoint=explicit_endpoint, binds=binds
        )
        self._executor.subscriptions.append(subscription)
        self._changed()
        self._executor.look()
        return subscription

    def create_timer(self, period_s: float, callback: Callable[[], object]) -> Timer:
        """Calls `callback` every `period_s` while the node is active; see `Timer`."""
        timer = Timer(period_s, callback)
        self._executor.timers.append(timer)
        return timer

    def create_service(self, name: str, request_type: type[Q], handler: Callable[[Q], msgspec.Struct | None]) -> None:
        """Creates a service; `~/NAME` is below this node's name.

        Args:
            name: Its name in the node's namespace; with `~/`, below the node's own name.
            request_type: The struct of its requests; its name without `Request` is the service's type.
            handler: Returns the response. A `DynError` that it raises is sent to the client; it does not end the node.

        Raises:
            InvalidArgumentError: The service already exists, or the name is empty.
        """
        full_name, _ = self._place(name, "")
        self.services().add(full_name, request_type, handler)
        self._own_services.append(full_name)
        self._changed()

    def create_client(self, name: str, response_type: type[R]) -> ServiceClient[R]:
        """Creates a client of another node's service; see `ServiceClient`."""
        full_name, _ = self._place(name, "")
        client: ServiceClient[R] = ServiceClient(self.context, full_name, response_type, self._find_service)
        self._executor.clients.append(client)
        self._executor.changed()
        return client

    def say_answers_at(self, endpoints: Iterable[str]) -> None:
        """Registers the endpoints of this node's dynamics server."""
        self.answers_at = tuple(endpoints)
        self._changed()

    def services(self) -> Services:
        """Returns the node's services, with those of every node; creates them at the first call."""
        services = self._executor.services
        if services is None:
            endpoint = topics.socket_file(f"@{self.name[1:]}.{self._token}", self.runtime_dir)
            # created late, because a node for a single publication needs no socket for services
            services = self._executor.services = Services(self.context, endpoint)
            for name, (kind, handler) in standard_services(self).items():
                services.add(f"{self.name}/{name}", kind, handler)
            self._changed()
        return services

    # --- the loop

    def spin(self) -> None:
        """Calls `spin_once` and sends heartbeats until the node is asked to stop."""
        while not self.stop.requested:
            self.spin_once(MAX_WAIT_S)
            self.beat()

    def spin_once(self, timeout_s: float = 0.0) -> None:
        """Waits at most `timeout_s` until a timer, callback or service is due, and calls all that are due. By default
        it does not wait, and answers services every `SERVICES_S` only.
        """
        if self._executor.services is None:
            self.services()
        waits = timeout_s > 0.0 and not self.stop.requested
        if waits:
            self._executor.wait(timeout_s)
        self._executor.turn(services=waits)

    # --- parameters

    def on_set(self, check: Callable[[P, P], None]) -> None:
        """Sets the function that is called with the old and new parameters before they are set. If it raises an error,
        nothing is set and the error is the response; else it applies the new parameters.
        """
        self._check = check

    def set_parameters(self, values: Mapping[str, Any]) -> None:
        """Sets all of these parameters, or none.

        Raises:
            InvalidArgumentError: A parameter does not exist, or a value has a wrong type or is out of range.
            FailedPreconditionError: A parameter is read-only while the node runs.
            DynError: Raised by the node's check.
        """
        new = with_values(self.parameters, values, self.name)
        self._check(self.parameters, new)
        self.parameters = new
        if values:
            _LOG.info("%s: set %s", self.name, ", ".join(f"{name} = {value}" for name, value in values.items()))

    # --- lifecycle

    def on_configure(self) -> None:
        """Creates topics, timers and services; an error keeps the node unconfigured."""

    def on_activate(self) -> None:
        """Called on activation; an error keeps the node inactive."""

    def on_deactivate(self) -> None:
        """Called on deactivation; an error keeps the node active."""

    def on_cleanup(self) -> None:
        """Releases what `on_configure` made, except topics, timers and services."""

    def change_state(self, transition: str) -> None:
        """Does a transition of the lifecycle.

        Raises:
            InvalidArgumentError: The transition does not exist.
            FailedPreconditionError: It is not possible in the present state, or the node is a function, which has no
                lifecycle.
            DynError: Raised by a hook such as `on_activate`; the node stays in the last state reached.
        """
        if not self.managed:
            raise FailedPreconditionError(f"node {self.name!r} has no lifecycle: it is active as long as it runs")
        checked(transition, self.state, self.name)
        if transition != "shutdown":
            self._step(transition)
            return
        if self.state == ACTIVE:
            self._step("deactivate")
        if self.state == INACTIVE:
            self._step("cleanup")
        self._enter(FINALIZED)
        self.stop.request()

    def run(self, *, autostart: bool = True) -> None:
        """Runs a node that is a class: configures and activates it, reports ready, and spins until asked to stop.

        autostart: Whether to configure and activate; else the node waits for transitions.
        """
        self.services()
        try:
            if autostart:
                self.change_state("configure")
                self.change_state("activate")
            self.telemetry.ready()
            self.spin()
        finally:
            if self.state != FINALIZED:
                self.change_state("shutdown")

    def begin(self) -> None:
        """Applies real-time settings and registers the node as active; called just before it is ready."""
        self.apply_realtime()
        if not self.managed:
            self._diagnose()
            self._enter(ACTIVE)

    def close(self) -> None:
        """Closes topics and services, and removes the node from the graph."""
        self._close_all()
        if self._executor.services is not None:
            self._executor.services.close()
            self._executor.services = None
        self._registration.close()

    def _place(self, topic: str, name: str) -> tuple[str, str]:
        """Returns the full name of a topic or service, and its given endpoint or an empty string."""
        expanded = f"{self.name}{topic[1:]}" if topic.startswith("~/") else topic
        full_name, explicit_endpoint = topics.place(expanded, self.arguments.namespace, self.arguments.remaps)
        if "://" in full_name and name:
            full_name, _ = topics.place(name, self.arguments.namespace, {})
        return full_name, explicit_endpoint

    def _find_service(self, name: str) -> str:
        services = {end.name: (node, end) for node in self.graph.nodes() for end in node.services}
        if name not in services:
            raise NotFoundError(f"there is no service {name!r}{did_you_mean(name, services)}")
        node, end = services[name]
        # one thread does everything: it would wait for itself
        if node.token == self._token:
            raise FailedPreconditionError(f"service {name!r} is this node's own: a call would wait forever")
        return end.endpoint

    def _step(self, transition: str) -> None:
        """Does one of the four simple transitions: calls its hook, `on_TRANSITION`, then changes the state."""
        try:
            getattr(self, f"on_{transition}")()
        except BaseException:
            if transition == "configure":
                self._close_all()
                self._changed()
            raise
        if transition == "configure":
            self._diagnose()
        elif transition == "cleanup":
            self._close_all()
        self._enter(TRANSITIONS[transition].target)

    def _diagnose(self) -> None:
        if self.diagnosed:
            out = self.create_publisher(DiagnosticArray, TOPIC)
            say = lambda: out.publish(diagnostics(self.name, self.state, self.telemetry.latest))
            self.create_timer(PERIOD_S, say)

    def _close_all(self) -> None:
        """Closes what `on_configure` created."""
        self._executor.close()
        for name in self._own_services:
            self.services().remove(name)
        self._own_services.clear()

    def _enter(self, state: str) -> None:
        self.state = state
        active = state == ACTIVE
        for publisher in self._executor.publishers:
            publisher.muted = self.managed and not active
        self._executor.active = active
        if active:
            self._executor.restart()
        self._changed()

    def _changed(self) -> None:
        self._executor.changed()
        with contextlib.suppress(UnavailableError):  # a launcher that ends removes the folder
            self._registration.write(self._entry())

    def _entry(self) -> NodeEntry:
        executor = self._executor
        return NodeEntry(
            self.name,
            os.getpid(),
            self._token,
            self.state,
            tuple(publisher.end for publisher in executor.publishers),
            tuple(subscription.end for subscription in executor.subscriptions),
            executor.services.ends() if executor.services is not None else (),
            answers_at=self.answers_at,
        )


LOOK_S = 0.1
"""Shortest period between two searches for new and ended publishers."""
SERVICES_S = 0.005
"""Period of services, their clients and latched topics in a node with its own loop, where a look at a socket takes two
system calls, which a loop at 1 kHz cannot spend on each of them in each turn.
"""
MAX_WAIT_S = 0.1
"""Longest wait before checking whether the node was asked to stop."""


class Executor:
    """The timers, topics, services and clients of a node. active: whether timers run and callbacks are called."""

    def __init__(self, graph: Graph) -> None:
        self.active = False
        self.services: Services | None = None
        self.timers: list[Timer] = []
        self.publishers: list[Publisher[Any]] = []
        self.subscriptions: list[Subscription[Any]] = []
        self.clients: list[ServiceClient[Any]] = []
        self._graph = graph
        self._seen: tuple[NodeEntry, ...] | None = None
        self._next_look_s = self._next_services_s = 0.0
        self._sockets: list[tuple[zmq.Socket[bytes], int]] | None = None

    def changed(self) -> None:
        """Must be called after topics, services or the node's state changed."""
        self._sockets = None
        self._seen = None
        self._next_look_s = 0.0

    def wait(self, timeout_s: float) -> None:
        """Waits until something is due, at most `timeout_s` and `MAX_WAIT_S`."""
        wait_s = min(timeout_s, MAX_WAIT_S)
        timer_s = self._timer_s()
        if timer_s is not None:
            wait_s = min(wait_s, timer_s)
        if wait_s <= 0.0:
            return
        deadline_s = time.monotonic() + wait_s
        # a poll has a resolution of milliseconds; sleep for the rest
        if not zmq.zmq_poll(self._polled(), int(1e3 * wait_s)):
            time.sleep(max(0.0, deadline_s - time.monotonic()))

    def turn(self, *, services: bool) -> None:
        """Calls all callbacks that are due now. services: whether services are due, even before `SERVICES_S`."""
        now_ns = time.monotonic_ns()
        if services or now_ns * 1e-9 >= self._next_services_s:
            self._next_services_s = now_ns * 1e-9 + SERVICES_S
            self._turn_services()
        for subscription in self.subscriptions:
            # an inactive node keeps no queue, so that it does not act on old messages when it is activated
            if not self.active:
                subscription.forget()
            elif subscription.callback is not None:
                subscription.turn()
        if self.active:
            for timer in self.timers:
                if now_ns >= timer.deadline_ns:
                    timer.turn(now_ns)

    def _turn_services(self) -> None:
        if (self.subscriptions or self.publishers) and time.monotonic() >= self._next_look_s:
            self.look()
        if self.services is not None:
            self.services.turn()
        for client in self.clients:
            client.turn()
        for publisher in self.publishers:
            if publisher.latched:
                publisher.turn()

    def look(self) -> None:
        """Searches for new and ended publishers and subscribers."""
        self._next_look_s = time.monotonic() + LOOK_S
        for publisher in self.publishers:
            publisher.turn()
        nodes = self._graph.nodes()
        # the same tuple, as long as no file of a node has changed
        if nodes is not self._seen:
            self._seen = nodes
            for subscription in self.subscriptions:
                subscription.look(nodes)

    def restart(self) -> None:
        """Restarts all timers now."""
        for timer in self.timers:
            timer.restart()

    def close(self) -> None:
        """Closes everything except the services."""
        ends: list[Any] = [*self.publishers, *self.subscriptions, *self.clients]
        for end in ends:
            end.close()
        self.timers, self.publishers, self.subscriptions, self.clients = [], [], [], []
        self.changed()

    def _timer_s(self) -> float | None:
        deadlines = [timer.deadline_ns for timer in self.timers if not timer.cancelled] if self.active else []
        return (min(deadlines) - time.monotonic_ns()) * 1e-9 if deadlines else None

    def _polled(self) -> list[tuple[zmq.Socket[bytes], int]]:
        if self._sockets is None:
            sockets = [publisher.socket for publisher in self.publishers if publisher.latched]
            sockets += [client.socket for client in self.clients if client.socket is not None]
            if self.services is not None:
                sockets.append(self.services.socket)
            if self.active:
                sockets += [topic.socket for topic in self.subscriptions if topic.callback is not None]
            self._sockets = [(socket, zmq.POLLIN) for socket in sockets]
        return self._sockets
