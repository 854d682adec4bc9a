"""The processes that do what is slow, and the one that makes them.

The fork server is started once: it imports the engine and the compiler, and from then on does nothing but fork, so
that a worker is there in some milliseconds and shares that memory. A worker answers one request after the other, with a
`Service` of its own, until its end of the pipe closes. It may be killed at any time: it holds nothing that is not
elsewhere too, and its kernels are in the store.

    fork_server  <-  a number and a socket: make a worker; a number alone: end that one
    worker   <-> what stands in `worker_words`
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from dyn_service.api.preparation import load_modules
from dyn_service.api.queries import COMPUTATIONS
from dyn_service.engine.robot import Robot
from dyn_service.kernels.making import listening
from dyn_service.service.protocol.messages import decode_reply_head, encode, peek
from dyn_service.service.server.administration import audit
from dyn_service.service.server.answering.jobs import Job
from dyn_service.service.server.answering.registry import Served
from dyn_service.service.server.answering.service import Service
from dyn_service.service.server.process import resident_bytes
from dyn_service.service.server.workers.pipes import (
    ORDER,
    Answered,
    Audit,
    Begin,
    DropRobot,
    Kernel,
    KnowRobot,
    Loaded,
    Made,
    Making,
    Pipe,
    PipeClosedError,
    Ready,
    Returned,
    ToWorker,
    Work,
)

_LOG = logging.getLogger(__name__)

_NICE = 10
"""Workers leave the processor to the process that serves control loops, where both want it."""

_PRELOADED = ("dyn_service.kernels.certify", "dyn_service.kernels.lower", "dyn_service.parsing.files")
"""Modules that the fork server imports once, so that the workers share their memory."""

_PR_SET_PDEATHSIG = 1


def fork_server_main(descriptor: int) -> None:
    """The fork_server's main function: makes workers until its pipe closes, then ends them all.

    Args:
        descriptor: Its end of a pair of sockets.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the serving process says when it is over
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    load_modules(COMPUTATIONS)
    for module in _PRELOADED:
        import_module(module)
    gc.collect()
    gc.freeze()
    end = socket.socket(fileno=descriptor)
    own, children = os.getpid(), dict[int, int]()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(children))
    while True:
        order, descriptors, _, _ = socket.recv_fds(end, ORDER.size, 1)
        if len(order) < ORDER.size:
            break
        (number,) = ORDER.unpack(order)
        with _none_is_reaped():
            if descriptors:
                try:
                    pid = os.fork()
                except OSError as fault:  # the pipe closes, and another worker is asked for later
                    _LOG.error("no worker can be made: %s", fault)  # said in one line
                else:
                    if not pid:
                        end.close()
                        _be_worker(descriptors[0], own)
                    children[number] = pid
                os.close(descriptors[0])
            elif number in children:  # not reaped, so the number of the process is its own still
                os.kill(children[number], signal.SIGKILL)
    with _none_is_reaped():
        for pid in children.values():
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


@contextmanager
def _none_is_reaped() -> Iterator[None]:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


def _reap(children: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            for number in [number for number, child in children.items() if child == pid]:
                del children[number]


def _end_with(parent: int) -> None:
    """Has the system end this process with its parent, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it had ended before the system was asked, and nobody could kill this one
            os._exit(0)


def _be_worker(descriptor: int, parent: int) -> None:
    try:
        _end_with(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        with suppress(OSError):
            os.nice(_NICE)
        ProcessWorker(Pipe(socket.socket(fileno=descriptor), ToWorker, waits=True)).run()  # type: ignore[arg-type]  # a union
    except PipeClosedError:
        pass
    except BaseException:  # noqa: BLE001  # the process ends here, whatever comes
        _LOG.exception("a worker failed")
    finally:
        os._exit(0)


class ProcessWorker:
    """A worker process: answers requests; tells what it makes meanwhile."""

    def __init__(self, pipe: Pipe[ToWorker]) -> None:
        self._pipe = pipe
        self._said = pipe.read()

    def run(self) -> None:
        """Does what it is told until the pipe closes.

        Raises:
            PipeClosedError: It has closed.
        """
        begin, _ = next(self._said)
        assert isinstance(begin, Begin)
        self._bound_memory(begin.limits.max_worker_bytes)
        self._most_resident = begin.limits.max_worker_bytes // 2
        self._service = Service(limits=begin.limits, allow_load=begin.allow_load, epoch=begin.epoch)
        self._added: list[Served] = []
        self._service.registry.added = self._added.append
        audit.tell = lambda change: self._pipe.send(Audit(change))
        self._pipe.send(Ready(os.getpid()))
        with np.errstate(all="ignore"), listening(self):
            for words, body in self._said:
                match words:
                    case KnowRobot():
                        self._know(body)
                    case DropRobot(name):
                        self._drop(name)
                    case Work():
                        self._work(words, body)

    @staticmethod
    def _bound_memory(most: int) -> None:
        with suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    # what kernels.making tells

    def begun(self, kernel: str) -> None:
        """Tells that a kernel is being made."""
        self._service.clock.begun(kernel)
        self._pipe.send(Making(kernel))

    def ended(self) -> None:
        """Tells that it is over."""
        self._service.clock.ended()
        self._pipe.send(Made())

    # what is to be done

    def _know(self, body: memoryview) -> None:
        robot: Robot = pickle.loads(body)  # from the serving process, not from a client
        self._drop(robot.name)
        self._service.registry.add(robot)

    def _drop(self, name: str) -> None:
        if name in self._service.registry.served:
            self._service.registry.remove(name)

    def _work(self, work: Work, body: memoryview) -> None:
        service = self._service
        self._added.clear()
        service.clock.forget()  # what was made before is in `excused_ns`
        job = service.accept(body, work.received_ns, work.excused_ns, work.caller)
        if isinstance(job, Job) and job.plan is None and not job.slow:
            self._pipe.send(Returned(), encode(replace(job.request, inputs=UNSET, options=UNSET)))
            return
        reply = job if isinstance(job, bytes) else service.answer(job)
        for served in self._added:  # one that was known already too: it may stay longer than before
            robot = served.robot
            self._pipe.send(Loaded(robot.name, robot.fingerprint), pickle.dumps((robot, served.expires_s)))
        head = decode_reply_head(reply)
        code = None if head.ok else (head.error or {}).get("code")
        last = resident_bytes() > self._most_resident
        self._pipe.send(Answered(peek(body).query, code, _kernel(job), last), reply)


def _kernel(job: Job | bytes) -> Kernel | None:
    """Which kernel answered."""
    if isinstance(job, bytes) or job.plan is None or type(job.request.robot) is not str:
        return None
    return Kernel(job.request.robot, job.request.query, *job.plan.kernel(job.inputs, job.options))


if __name__ == "__main__":
    fork_server_main(int(sys.argv[1]))
