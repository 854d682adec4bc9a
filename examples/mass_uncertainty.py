"""Which unknown mass in the hand does a controller tolerate? 512 closed loops of a Panda; the worst one is replayed."""

from pathlib import Path

import numpy as np

from dyn_service import Robot
from dyn_service.studies import ClosedLoop

robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf")
home = [0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.8, 0.02]
loop = {"law": "computed_torque", "q_ref": home, "kp": 400.0, "kd": 40.0, "limit": "limits"}
loop |= {"dt": 1e-3, "steps": 1000, "tolerance": 0.02, "integrator": "semi_implicit_euler"}

vary = {f"q.{name}": {"uniform": [x - 0.2, x + 0.2]} for name, x in zip(robot.joint_names[:7], home, strict=False)}
vary |= {"q": {"constant": home}, "v": {"constant": 0.0}, "payload.panda_hand.mass": {"uniform": [0.01, 3.0]}}
outputs = {name: {"query": "closed_loop", "output": name, "options": loop} for name in ("success", "final_error")}
study = robot.study(vary, outputs, samples={"sample": {"count": 512, "seed": 7}})
print(study.explain())
results = study.run()

mass = np.array([float(study.state(k)["overlay"].payloads[0].mass) for k in range(512)])
success, error = results.success.values, results.final_error.values
for low in np.arange(0.0, 3.0, 0.5):
    in_bin = (mass >= low) & (mass < low + 0.5)
    ninety = np.quantile(error[in_bin], 0.9)
    print(
        f"{low:.1f} to {low + 0.5:.1f} kg: {success[in_bin].mean():4.0%} within 0.02 rad, 90 % within {ninety:.4f} rad"
    )
worst = int(np.argmax(error))
motion = ClosedLoop(robot, loop).replay(study.state(worst))
deviation = np.abs(motion.q[-1] - home).max()
print(f"worst: state {worst} with {mass[worst]:.2f} kg, {error[worst]:.4f} rad; replayed: {deviation:.4f} rad")
