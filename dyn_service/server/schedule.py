"""The requests that wait for a worker, and whose turn it is: of each peer one is begun in turn.

Short requests and long ones stand in a line each, so that whoever may take only short ones need not look through the
others. A peer that has nothing waiting is not remembered: when it comes again it stands last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import count
from typing import Any

from dyn_service.server.task import Task

_Own = OrderedDict[Task, None]
"""What one peer has waiting, in the order it is begun in."""


class _Line:
    """Tasks of one kind: the peers by turn, and of each what it has waiting."""

    def __init__(self) -> None:
        self.peers: OrderedDict[Any, _Own] = OrderedDict()
        self.turns: dict[Any, int] = {}

    def stand(self, task: Task, turn: int, *, first: bool) -> None:
        peer = task.peer
        own = self.peers.setdefault(peer, _Own())
        self.turns.setdefault(peer, turn)
        own[task] = None
        if first:
            self.turns[peer] = turn
            own.move_to_end(task, last=False)
            self.peers.move_to_end(peer, last=False)

    def leave(self, task: Task) -> bool:
        own = self.peers.get(task.peer)
        if own is None or task not in own:
            return False
        del own[task]
        if not own:
            del self.peers[task.peer], self.turns[task.peer]
        return True

    def first(self) -> tuple[int, Task] | None:
        """The next to be begun, and its turn."""
        for peer, own in self.peers.items():
            return self.turns[peer], next(iter(own))
        return None

    def go_last(self, peer: Any, turn: int) -> None:
        if peer in self.peers:
            self.peers.move_to_end(peer)
            self.turns[peer] = turn


class Schedule:
    """What waits, and what is next. Nothing here takes longer the more there is."""

    def __init__(self) -> None:
        self._short, self._long = _Line(), _Line()
        self._turn = count(1)
        self._before = count(0, -1)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Task]:
        return (task for line in (self._short, self._long) for own in line.peers.values() for task in own)

    def add(self, task: Task) -> None:
        """Has the task wait, behind what its peer has waiting."""
        self._line(task).stand(task, next(self._turn), first=False)
        self._count += 1

    def put_back(self, task: Task) -> None:
        """Has a task wait again that was begun before: it is next."""
        self._line(task).stand(task, next(self._before), first=True)
        self._count += 1

    def discard(self, task: Task) -> bool:
        """Has it wait no longer; whether it did."""
        waited = self._line(task).leave(task)
        self._count -= waited
        return waited

    def take(self, *, long: bool) -> Task | None:
        """Takes out the task whose turn it is; None: there is none, or none but long ones, which may not be begun."""
        lines = (self._short, self._long) if long else (self._short,)
        found = min(
            (first for line in lines if (first := line.first()) is not None), key=lambda each: each[0], default=None
        )
        if found is None:
            return None
        _, task = found
        self.discard(task)
        self._line(task).go_last(task.peer, next(self._turn))
        return task

    def _line(self, task: Task) -> _Line:
        return self._long if task.long else self._short
