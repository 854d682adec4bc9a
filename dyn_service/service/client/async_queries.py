"""The methods of `api/queries.py` for asyncio: the same functions with coroutines `_ask` and `_compute`.

Editors and type checkers read their signatures in `async_queries.pyi`, which `python -m tools.awaited` writes.
"""

from abc import ABC

from dyn_service.api.description import Described
from dyn_service.api.queries import COMPUTATIONS, QUERIES, GaitQueries, RobotQueries


class AsyncRobotQueries(Described, ABC):
    """As `RobotQueries`, each method to be awaited."""


class AsyncGaitQueries:
    """As `GaitQueries`, each method to be awaited."""


for _awaited, _plain in ((AsyncRobotQueries, RobotQueries), (AsyncGaitQueries, GaitQueries)):
    for _name in (QUERIES.keys() | COMPUTATIONS.keys()) & vars(_plain).keys():
        setattr(_awaited, _name, vars(_plain)[_name])
