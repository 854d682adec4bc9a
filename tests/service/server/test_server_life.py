"""Robots are loaded, changed and unloaded, workers killed and the server restarted, in any order: what clients get.

A hypothesis state machine against a real server with sockets and worker processes. The model is a dictionary of the
robots that the server should have. Each answer is compared to this process's, bit by bit.
"""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from dyn_service import Client, Robot, Server
from dyn_service.errors import DynError
from qa.faults.kills import children
from tests.conftest import URDF
from tests.service.conftest import WAIT_S
from tests.wide import wide

NAMES = ("left", "right")
MASSES = (1.0, 2.5)
PERMANENT = "double_pendulum"


def model(name: str, mass: float) -> str:
    """Returns a pendulum about y with this mass, half a metre from its hinge."""
    inertia = '<inertia ixx="0.01" iyy="0.01" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
    return (
        f'<robot name="{name}"><link name="base"/><link name="rod"><inertial><origin xyz="0 0 -0.5"/>'
        f'<mass value="{mass}"/>{inertia}</inertial></link><joint name="hinge" type="continuous">'
        '<parent link="base"/><child link="rod"/><axis xyz="0 1 0"/></joint></robot>'
    )


class Life(RuleBasedStateMachine):
    """One endpoint, whose server is restarted, and two clients that remain."""

    workers: int
    models: dict[tuple[str, float], Robot]
    permanent: Robot

    remotes = Bundle("remotes")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.endpoint = f"ipc://{self.folder.name}/server"
        self.server: Server | None = None
        self.begin()
        self.clients = [Client(self.endpoint, timeout_s=WAIT_S) for _ in range(2)]
        self.random = np.random.default_rng(0)

    def begin(self) -> None:
        self.server = Server([self.permanent], endpoints=[self.endpoint], allow_load=True, workers=self.workers)
        self.server.start()
        self.served: dict[str, float] = {}

    def end(self) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    def code(self, ask: Any) -> str:
        try:
            ask()
        except DynError as error:
            return error.code
        return ""

    @initialize(target=remotes, index=st.integers(0, 1))
    def the_permanent_one(self, index: int) -> Any:
        return (PERMANENT, None, self.clients[index].robot(PERMANENT))

    @rule(target=remotes, index=st.integers(0, 1), name=st.sampled_from(NAMES), mass=st.sampled_from(MASSES))
    def a_robot_comes(self, index: int, name: str, mass: float) -> Any:
        """Under a free name, or loaded again; a name used by another model is refused."""
        if self.served.get(name, mass) != mass:
            assert self.code(lambda: self.clients[index].load_robot(model(name, mass))) == "FAILED_PRECONDITION"
            return multiple()
        remote = self.clients[index].load_robot(model(name, mass))
        self.served[name] = mass
        return (name, mass, remote)

    @rule(index=st.integers(0, 1), name=st.sampled_from(NAMES))
    def a_robot_goes(self, index: int, name: str) -> None:
        expected = "" if name in self.served else "NOT_FOUND"
        assert self.code(lambda: self.clients[index].unload_robot(name)) == expected
        self.served.pop(name, None)

    @rule(served=remotes, states=st.sampled_from([0, 1, 30, 3000]))
    def a_robot_is_asked(self, served: Any, states: int) -> None:
        """The answer is of the model that the handle was made for, or an error with the reason."""
        name, mass, remote = served
        local = self.permanent if mass is None else self.models[name, mass]
        q, v, a = self.random.uniform(-3.0, 3.0, (3, states, local.nv) if states else (3, local.nv))
        if name != PERMANENT and name not in self.served:
            assert self.code(lambda: remote.inverse_dynamics(q, v, a)) == "NOT_FOUND"
        elif self.served.get(name) != mass:
            assert self.code(lambda: remote.inverse_dynamics(q, v, a)) == "FAILED_PRECONDITION"
        else:
            assert remote.inverse_dynamics(q, v, a).tobytes() == local.inverse_dynamics(q, v, a).tobytes()

    @rule(served=remotes)
    def a_robot_is_simulated(self, served: Any) -> None:
        name, mass, remote = served
        if mass == self.served.get(name):
            local = self.permanent if mass is None else self.models[name, mass]
            q, v = self.random.uniform(-1.0, 1.0, (2, local.nv))
            motion = remote.simulate(q, v, dt=1e-3, steps=20)
            assert motion.q.tobytes() == local.simulate(q, v, dt=1e-3, steps=20).q.tobytes()

    @rule()
    def the_server_starts_again(self) -> None:
        """With its first robot, and none of those that clients loaded."""
        self.end()
        self.begin()

    @rule(number=st.integers(0, 3))
    def a_worker_is_killed(self, number: int) -> None:
        for fork_server in children(os.getpid()) if self.workers else ():
            for worker in children(fork_server)[number : number + 1]:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)

    @invariant()
    def both_see_the_same_robots(self) -> None:
        for client in self.clients:
            assert sorted(client.list_robots()) == sorted([PERMANENT, *self.served])

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.end()
        self.folder.cleanup()


@pytest.mark.parametrize(
    ("workers", "examples"),
    [(0, 10), *wide([(0, 20)], lambda case: False), pytest.param(2, 10, marks=pytest.mark.slow)],
)
def test_no_order_of_events_gives_a_wrong_answer(workers: int, examples: int) -> None:
    """With worker processes, each restart takes seconds."""
    Life.workers = workers
    Life.permanent = Robot.from_urdf(URDF / f"{PERMANENT}.urdf")
    Life.models = {(name, mass): Robot.from_urdf(model(name, mass)) for name in NAMES for mass in MASSES}
    many_steps = settings(
        max_examples=examples, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Life, settings=many_steps)
