"""The requests that wait for a worker, and whose turn it is: that peer's whose last one was begun longest ago.

Short requests and long ones stand in a line each, so that whoever may take only short ones need not look through the
others. Of peers that have nothing waiting no more is kept than a number, and that not for ever: a peer is a connection,
with all that it holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Any

from dyn_service.service.server.answering.task import Task

_MOST_REMEMBERED = 4096
"""Of so many peers it is known when they had their last turn; more than there are connections."""

_Line = dict[Any, OrderedDict[Task, int]]
"""By peer, what it has waiting in the order it is begun in, with the number it came under."""


class Schedule:
    """What waits, and what is next."""

    def __init__(self) -> None:
        self._short: _Line = {}
        self._long: _Line = {}
        self._came = count()
        self._turn = 0
        self._before = count(-1, -1)
        self._last_turns: OrderedDict[int, int] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Task]:
        return (task for line in (self._short, self._long) for own in line.values() for task in own)

    def add(self, task: Task) -> None:
        """Adds the task behind those of its peer. A new peer starts at the current turn: reconnecting gains nothing."""
        if hash(task.peer) not in self._last_turns:
            self._remember(task.peer, self._turn)
        self._line(task).setdefault(task.peer, OrderedDict())[task] = next(self._came)
        self._count += 1

    def put_back(self, task: Task) -> None:
        """Has a task wait again that was begun before: it is next."""
        self.add(task)
        self._line(task)[task.peer].move_to_end(task, last=False)
        self._remember(task.peer, next(self._before))

    def discard(self, task: Task) -> bool:
        """Has it wait no longer; whether it did."""
        line = self._line(task)
        if task not in line.get(task.peer, ()):
            return False
        del line[task.peer][task]
        if not line[task.peer]:
            del line[task.peer]
        self._count -= 1
        if not self._count:
            self._last_turns.clear()
        return True

    def take(self, *, long: bool) -> Task | None:
        """Takes out the task whose turn it is; None: there is none, or none but long ones, which may not be begun."""
        lines = (self._short, self._long) if long else (self._short,)
        firsts = [self._first(line) for line in lines if line]
        if not firsts:
            return None
        *_, task = min(firsts, key=lambda first: first[:2])
        self.charge(task.peer)
        self.discard(task)
        return task

    def charge(self, peer: Any) -> None:
        """Counts one more turn of the peer: peers that wait, or that ask before the next turn, go first."""
        self._turn += 1
        self._remember(peer, self._turn)

    def _first(self, line: _Line) -> tuple[int, int, Task]:
        """Whose turn it is in a line: when its peer had the last one, the number it came under, and itself."""
        last = self._last_turns.get
        turn, own = min(((last(hash(peer), 0), own) for peer, own in line.items()), key=lambda each: each[0])
        task, came = next(iter(own.items()))
        return turn, came, task

    def _remember(self, peer: Any, turn: int) -> None:
        number = hash(peer)
        self._last_turns[number] = turn
        self._last_turns.move_to_end(number)
        if len(self._last_turns) > _MOST_REMEMBERED:
            self._last_turns.popitem(last=False)

    def _line(self, task: Task) -> _Line:
        return self._long if task.long else self._short
