"""The same control code with a robot in this process and behind a server."""

from pathlib import Path

import numpy as np

from dyn_service import Robot, RobotQueries, Server, connect

URDF = Path(__file__).parent.parent / "urdf" / "ur5e.urdf"


def torques_to_hold(robot: RobotQueries, q: np.ndarray) -> np.ndarray:
    """Computed torques that hold the arm at its position."""
    rest = np.zeros(robot.nv)
    return robot.computed_torque(q, rest, q, rest, rest, kp=100.0, kd=20.0)


q = np.array([0.1, -1.2, 1.0, -0.5, 0.3, 0.0])

# A server of its own process is `dyn serve urdf/ur5e.urdf`; here it is a thread, so that the example stands alone.
with Server([Robot.from_urdf(URDF)], endpoints=["tcp://127.0.0.1:0"]) as server:
    local_robot = connect(str(URDF))
    remote_robot = connect(f"{server.endpoints[0]}/ur5e")
    local_torques, remote_torques = torques_to_hold(local_robot, q), torques_to_hold(remote_robot, q)
    remote_robot.close()

print("in this process", np.round(local_torques, 6))
print("over the socket", np.round(remote_torques, 6))
print("same bits:", np.array_equal(local_torques, remote_torques))
if not np.array_equal(local_torques, remote_torques):
    raise SystemExit("the two must not differ")
