"""A controller that holds a pose and fails on command, in a chosen way. It needs no engine.

    python -m qa.faults.scripted_controller STATES COMMANDS LAW      (endpoints; effort, pose and gain, as JSON)

Each line on its standard input sets its behaviour: `good`, or a name of `WRONG_COMMANDS`.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable

import msgspec
import numpy as np
import zmq

from dyn_service.control.plant.safety import RUNNING
from dyn_service.graph.middleware.pubsub import split_trailer
from dyn_service.messages import decode, encode
from dyn_service.messages.dyn_service_msgs import JointCommand, PlantState

W = 20.0
"""rad/s of the pose's error."""

WRONG_COMMANDS: dict[str, Callable[[JointCommand], JointCommand | None]] = {
    "silence": lambda good: None,
    "nan": lambda good: msgspec.structs.replace(good, effort=[*good.effort[:-1], float("nan")]),
    "stale": lambda good: msgspec.structs.replace(good, state_seq=max(good.state_seq - 200, 0)),
    "absurd": lambda good: msgspec.structs.replace(good, state_seq=2**62),
    "fingerprint": lambda good: msgspec.structs.replace(good, fingerprint="0" * 32),
}
"""What is sent in a right command's place."""


def main(states_at: str, commands_at: str, law: str) -> None:
    """Runs until it is killed or its standard input ends."""
    law_numbers = json.loads(law)
    pose, effort, inertia = (np.array(law_numbers[name]) for name in ("pose", "effort", "inertia"))
    context, number = zmq.Context(), os.getpid()
    context.linger = 0
    states = context.socket(zmq.SUB)
    commands = context.socket(zmq.PUB)
    states.setsockopt(zmq.CONFLATE, 1)
    states.setsockopt(zmq.SUBSCRIBE, b"")
    states.connect(states_at)
    commands.connect(commands_at)
    does = "good"
    while True:
        if select.select([0], [], [], 0.0)[0]:
            lines = os.read(0, 1000).decode().split()
            if not lines:
                return
            does = lines[-1]
        if not states.poll(50):
            continue
        state = decode(PlantState, split_trailer(states.recv())[0])
        arm = state.mode not in RUNNING
        if arm and not state.armable:
            continue
        q, v = np.array(state.position), np.array(state.velocity)
        tau = effort + inertia @ (W * W * (pose - q) - 2.0 * W * v)
        head = state.session, state.seq, state.epoch, state.fingerprint, number
        good = JointCommand(*head, state.name, tau.tolist(), arm and does == "good")
        command = good if does == "good" else WRONG_COMMANDS[does](good)
        if command is not None:
            commands.send(encode(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
