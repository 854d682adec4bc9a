"""Entry point of the fork server and of the worker processes.

A server starts one fork server. It imports the engine and the compiler once and then only forks, so that a worker is
ready in milliseconds and shares that memory. A worker answers one request at a time, with its own `Service`, until its
pipe is closed. It can be killed at any time: its robots are copies, and its kernels are in the store on disk.

    fork server  <-  a number and a socket: start a worker; a number alone: kill it
    worker       <-> the messages in `pipes`
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
from contextlib import suppress
from time import perf_counter_ns

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from dyn_service.api.queries import COMPUTATIONS
from dyn_service.engine import computations
from dyn_service.engine.robot import Robot
from dyn_service.errors import DynError
from dyn_service.kernels.compile_events import listening
from dyn_service.service.protocol.messages import decode_reply_head, encode, peek
from dyn_service.service.server.administration import audit
from dyn_service.service.server.answering.jobs import Job
from dyn_service.service.server.answering.registry import Served
from dyn_service.service.server.answering.service import Service, is_query
from dyn_service.service.server.process import blocked, resident_bytes
from dyn_service.service.server.workers import pipes
from dyn_service.service.server.workers.pipes import Pipe, ToWorker

_LOG = logging.getLogger(__name__)

# niceness of workers, so that the server's process has priority; at 10 they starve on a busy machine
_NICE = 5

_SMALL_ROBOT = """<robot name="small"><link name="base"/><link name="arm"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="joint" type="continuous"><parent link="base"/><child link="arm"/></joint></robot>"""

_PR_SET_PDEATHSIG = 1


def fork_server_main(descriptor: int) -> None:
    """Runs the fork server: starts workers until its end of a socket pair is closed, then kills them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends when the server closes the pipe
    computations.load(COMPUTATIONS)
    import dyn_service.kernels.certify
    import dyn_service.kernels.lower
    import dyn_service.parsing.files  # noqa: F401  # imported once here, so that the workers share their memory

    make_shared_code()
    gc.collect()
    gc.freeze()
    end = socket.socket(fileno=descriptor)
    parent, children = os.getpid(), dict[int, int]()
    signal.signal(signal.SIGCHLD, lambda *_: _reap(children))
    while True:
        order, descriptors, _, _ = socket.recv_fds(end, pipes.ORDER.size, 1)
        if len(order) < pipes.ORDER.size:
            break
        (number,) = pipes.ORDER.unpack(order)
        with blocked(signal.SIGCHLD):
            if descriptors:
                try:
                    pid = os.fork()
                except OSError as fault:  # closes the pipe; the server orders another worker later
                    _LOG.error("no worker can be started: %s", fault)  # one line, no traceback
                else:
                    if not pid:
                        end.close()
                        _run_worker(descriptors[0], parent)
                    children[number] = pid
                os.close(descriptors[0])
            elif number in children:  # not reaped, so its process number was not reused
                os.kill(children[number], signal.SIGKILL)
    with blocked(signal.SIGCHLD):
        for pid in children.values():
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def make_shared_code() -> None:
    """Makes what all kernels share, so that workers inherit it: it takes 0.1 to 0.4 s, a kernel from the store 5 ms."""
    with suppress(DynError):  # a folder of kernels that may not be used; workers report it
        Robot.from_text(_SMALL_ROBOT).forward_dynamics([0.0], [0.0], [0.0])


def _reap(children: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
            for number in [number for number, child in children.items() if child == pid]:
                del children[number]


def _exit_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent exits."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:  # it exited before prctl
            os._exit(0)


def _run_worker(descriptor: int, parent: int) -> None:
    try:
        _exit_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        with suppress(OSError):
            os.nice(_NICE)
        end = socket.socket(fileno=descriptor)
        ProcessWorker(Pipe(end, ToWorker, waits=True)).run()  # type: ignore[arg-type]  # a union
    except pipes.PipeClosedError:
        pass
    except BaseException:  # noqa: BLE001  # the process exits here in any case
        _LOG.exception("a worker failed")
    finally:
        os._exit(0)


class ProcessWorker:
    """A worker process: answers requests and reports the kernels it compiles."""

    def __init__(self, pipe: Pipe[ToWorker]) -> None:
        self._pipe = pipe
        self._messages = pipe.read()

    def run(self) -> None:
        """Handles messages until the pipe is closed, which raises `PipeClosedError`."""
        begin, _ = next(self._messages)
        assert isinstance(begin, pipes.Begin)
        self._bound_memory(begin.limits.max_worker_bytes)
        self._most_resident = begin.limits.max_worker_bytes // 2
        self._service = Service(limits=begin.limits, allow_load=begin.allow_load, epoch=begin.epoch)
        self._robots_added: list[Served] = []
        self._service.registry.added = self._robots_added.append
        self._service.is_stopped = self._pipe.has_message
        audit.record = lambda change: self._pipe.send(pipes.Audit(change))
        self._pipe.send(pipes.Ready(os.getpid()))
        with np.errstate(all="ignore"), listening(self):
            for message, body in self._messages:
                match message:
                    case pipes.AddRobot():
                        self._add_robot(body)
                    case pipes.RemoveRobot(name):
                        self._remove_robot(name)
                    case pipes.Work():
                        self._work(message, body)
                    case pipes.Stop():  # its work has ended
                        pass

    @staticmethod
    def _bound_memory(limit_bytes: int) -> None:
        with suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    # callbacks of kernels.compile_events

    def begun(self, kernel: str) -> None:
        """Reports that a compilation starts."""
        self._service.clock.begun(kernel)
        self._pipe.send(pipes.Making(kernel))

    def ended(self) -> None:
        """Reports that it has ended."""
        self._service.clock.ended()
        self._pipe.send(pipes.Made())

    # messages

    def _add_robot(self, body: memoryview) -> None:
        robot: Robot = pickle.loads(body)  # from the serving process, not from a client
        self._remove_robot(robot.name)
        self._service.registry.add(robot)

    def _remove_robot(self, name: str) -> None:
        if name in self._service.registry.served:
            self._service.registry.remove(name)

    def _work(self, work: pipes.Work, body: memoryview) -> None:
        service, begun_ns = self._service, perf_counter_ns()
        self._robots_added.clear()
        service.clock.forget()  # earlier compilations are in `excused_ns`
        job = service.accept(body, work.received_ns, work.excused_ns, work.caller)
        if work.needs_kernel:
            if isinstance(job, Job):
                service.make_kernel(job)  # also if the request is late: the next one needs it
            self._pipe.send(pipes.KernelReady())
        if isinstance(job, Job) and job.plan is None and not job.slow:
            self._pipe.send(pipes.Returned(), encode(replace(job.request, inputs=UNSET, options=UNSET)))
            return
        reply = job if isinstance(job, bytes) else service.answer(job)
        for served in self._robots_added:  # including known ones, whose expiry time may have changed
            robot = served.robot
            self._pipe.send(pipes.Loaded(robot.name, robot.fingerprint), pickle.dumps((robot, served.expires_s)))
        head = decode_reply_head(reply)
        code = None if head.ok else (head.error or {}).get("code")
        last = resident_bytes() > self._most_resident
        query = peek(body).query
        now = perf_counter_ns()
        took_ns = now - begun_ns - service.clock.within_ns(begun_ns, now)
        # A name of any length would not fit in a message.
        self._pipe.send(pipes.Answered(query if is_query(query) else "", code, _kernel(job), took_ns, last), reply)


def _kernel(job: Job | bytes) -> pipes.Kernel | None:
    """Returns the kernel that answered."""
    if isinstance(job, bytes) or job.plan is None or type(job.request.robot) is not str:
        return None
    return pipes.Kernel(job.request.robot, job.request.query, *job.plan.kernel(job.inputs, job.options))


if __name__ == "__main__":
    fork_server_main(int(sys.argv[1]))
