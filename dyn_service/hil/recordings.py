"""What is kept of a run: a bag of its messages, and its signals."""

from __future__ import annotations

import json
from pathlib import Path

from dyn_service.control.joint_states import MULTI_DOF
from dyn_service.hil.bench import Run
from dyn_service.messages import Message
from dyn_service.messages.builtin_interfaces import Time

STATES, COMMANDS, JOINTS = "/plant_state", "/joint_commands", "/joint_states"
SEVERAL, ODOMETRY = f"/{MULTI_DOF}", "/odom"


def keep(run: Run, folder: Path, name: str, test: str) -> list[Path]:
    """Writes `NAME.npz`, and `NAME.mcap` where the library for bags is installed; the files.

    Times in the bag are the plant's.
    """
    kept = [folder / f"{name}.npz"]
    run.record.save(kept[0])
    try:
        from dyn_service.graph.bags.writer import BagWriter
    except ImportError:
        return kept
    path = folder / f"{name}.mcap"
    path.unlink(missing_ok=True)
    with BagWriter(path) as bag:
        said = {"test": test, "mode": run.mode, "seed": str(run.seed), "ended": run.ended}
        bag.note("dyn_service.hil", {**said, "faults": json.dumps([repr(fault) for fault in run.faults])})
        messages: list[tuple[float, str, Message]] = [(state.stamp, STATES, state) for state in run.log.states]
        for state in run.log.states:
            ros = zip((JOINTS, SEVERAL, ODOMETRY), run.log.messages.of_state(state), strict=True)
            messages += [(state.stamp, topic, message) for topic, message in ros if message is not None]
        messages += [(t, COMMANDS, command) for t, command in run.log.commands]
        for t, topic, message in sorted(messages, key=lambda one: one[0]):
            bag.write(topic, message, Time.from_seconds(t).nanoseconds())
    return [*kept, path]
