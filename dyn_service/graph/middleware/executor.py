"""The executor of a node: each turn waits until something is due, then calls all callbacks that are due."""

from __future__ import annotations

import time
from typing import Any

import zmq

from dyn_service.graph.middleware.graph import Graph, NodeEntry
from dyn_service.graph.middleware.pacing import Timer
from dyn_service.graph.middleware.pubsub import Publisher, Subscription
from dyn_service.graph.middleware.services import ServiceClient, Services

LOOK_S = 0.1
"""Shortest period between two searches for new and ended publishers."""
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
        self._next_look_s = 0.0
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
        until = time.monotonic() + wait_s
        # a poll has a resolution of milliseconds; sleep for the rest
        if not zmq.zmq_poll(self._polled(), int(1e3 * wait_s)):
            time.sleep(max(0.0, until - time.monotonic()))

    def turn(self) -> None:
        """Calls all callbacks that are due now."""
        if (self.subscriptions or self.publishers) and time.monotonic() >= self._next_look_s:
            self.look()
        if self.services is not None:
            self.services.turn()
        for client in self.clients:
            client.turn()
        for publisher in self.publishers:
            if publisher.latched:
                publisher.turn()
        for subscription in self.subscriptions:
            if self.active:
                subscription.turn()
            else:
                subscription.forget()
        if self.active:
            for timer in self.timers:
                timer.turn(time.monotonic_ns())

    def look(self) -> None:
        """Searches for new and ended publishers and subscribers."""
        self._next_look_s = time.monotonic() + LOOK_S
        for publisher in self.publishers:
            publisher.turn()
        nodes = self._graph.nodes()
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
        for publisher in self.publishers:
            publisher.close()
        for subscription in self.subscriptions:
            subscription.close()
        for client in self.clients:
            client.close()
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
                sockets += [one.socket for one in self.subscriptions if one.callback is not None]
            self._sockets = [(socket, zmq.POLLIN) for socket in sockets]
        return self._sockets
