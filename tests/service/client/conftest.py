"""Clients of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dyn_service import AsyncClient, Client


class _Blocking:
    """`AsyncClient` with blocking calls, so that the same test runs with both clients."""

    def __init__(self, client: Any, run: Callable[[Any], Any]) -> None:
        self._client = client
        self._run = run

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._client, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            value = attribute(*args, **kwargs)
            value = self._run(value) if asyncio.iscoroutine(value) else value
            return _Blocking(value, self._run) if hasattr(value, "with_timeout") else value

        return call


@pytest.fixture(params=["Client", "AsyncClient"])
def connect_to(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of either kind, and closes them."""
    clients: list[Any] = []
    with asyncio.Runner() as runner:

        def make(endpoint: str, timeout_s: float = 20.0, **options: Any) -> Any:
            if request.param == "Client":
                clients.append(Client(endpoint, timeout_s=timeout_s, **options))
            else:
                clients.append(_Blocking(AsyncClient(endpoint, timeout_s=timeout_s, **options), runner.run))
            return clients[-1]

        yield make
        for client in clients:
            client.close()
            client.close()
