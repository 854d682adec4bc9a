"""Size the joints of an arm from a pick-and-place recording: peak and equivalent loads, with a page for a supplier."""

import sys
import tempfile
from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.graph.bags import recording
from dyn_service.studies import design_loads, duty_cycle

robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "ur5e.urdf")
with tempfile.TemporaryDirectory() as folder:
    # A recording: between two poses and back, each way in 1.2 s, with a rest of 0.3 s. Yours may be a bag.
    file = Path(folder) / "cycle.npz"
    pick, place = np.array([0.0, -1.2, 1.8, -2.1, -1.6, 0.0]), np.array([1.6, -1.6, 1.4, -1.4, -1.6, 0.8])
    t = np.arange(0.0, 3.0, 2e-3)
    share = np.clip(np.where(t < 1.5, t, 3.0 - t) / 1.2, 0.0, 1.0)
    q = pick + (place - pick) * (10 * share**3 - 15 * share**4 + 6 * share**5)[:, None]
    np.savez(file, t=t, q=q, v=np.gradient(q, t, axis=0))

    vary = {name: {"recording": str(file)} for name in ("q", "v", "a")}
    hand = robot.link_names[-1]
    vary |= {f"payload.{hand}.mass": {"values": [0.0, 5.0], "dim": "payload"}}
    loads = design_loads(robot, vary)
    cycle = duty_cycle(robot.with_payload(loads.study.state(len(t))["overlay"].payloads[0]), recording(robot, file))
for row in loads.rows:
    if row["measure"] == "drive":
        equal = next(drive["drive"] for drive in cycle if drive["joint"] == row["joint"])
        print(
            f"{row['joint']:<22} peak {row['largest']:8.2f} N m, rms {row['rms']:7.2f}, equivalent (cubic) {equal:7.2f}"
        )
if len(sys.argv) > 1:
    print(loads.write(sys.argv[1]))
