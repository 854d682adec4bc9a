"""The same control code with a robot in this process and behind a server."""

from pathlib import Path

import numpy as np

from dyn_service import Robot, connect
from dyn_service.api.queries import RobotQueries
from dyn_service.service.server.app import Server

URDF = Path(__file__).parent.parent / "urdf" / "ur5e.urdf"


def torques_to_hold(robot: RobotQueries, q: np.ndarray) -> np.ndarray:
    """Computed torques that hold the arm at its position."""
    still = np.zeros(robot.nv)
    return robot.computed_torque(q, still, q, still, still, kp=100.0, kd=20.0)


q = np.array([0.1, -1.2, 1.0, -0.5, 0.3, 0.0])

# A server of its own process is `dyn serve urdf/ur5e.urdf`; here it is a thread, so that the example stands alone.
with Server([Robot.from_urdf(URDF)], endpoints=["tcp://127.0.0.1:0"]) as server:
    here = connect(str(URDF))
    there = connect(f"{server.endpoints[0]}/ur5e")
    ours, theirs = torques_to_hold(here, q), torques_to_hold(there, q)
    there.close()

print("in this process", np.round(ours, 6))
print("over the socket", np.round(theirs, 6))
print("same bits:", np.array_equal(ours, theirs))
if not np.array_equal(ours, theirs):
    raise SystemExit("the two must not differ")
