"""An arm picks up a payload: what is the tracking error without it in the model, and with it?

Computed torque on a Panda, in simulated time. The plant carries 1 kg in its hand from 2 s on; the controller's model
includes it from 4 s on, by an overlay, which needs no compilation.
"""

import numpy as np

from dyn_service import Overlay, Payload, Robot, find_robot
from dyn_service.control import ComputedTorque, MultiSineDesign, design_multi_sine, dry_run, gains

robot = Robot.from_file(find_robot("panda"))
carrying = robot.overlaid(Overlay(payloads=Payload("panda_hand", mass=1.0, com=(0.0, 0.0, 0.1))))
kp, kd = gains(30.0, 1.0, robot.nv)

limits = robot.limits
q = 0.5 * (limits.lower + limits.upper)
design = MultiSineDesign(ramp_s=1.0)

print("seconds  carries  model   error rms mrad  largest mrad   joint of the largest")
v, label = np.zeros(robot.nv), {True: "knows", False: "does not"}
for begin, plant, model in ((0.0, robot, robot), (2.0, carrying, robot), (4.0, carrying, carrying)):
    law = ComputedTorque(model, kp, kd)
    onwards = lambda q, v: design_multi_sine(design, limits, q, v)  # from the present position and velocity
    run = dry_run(law, model, 2.0, motion=onwards, plant=plant, q=q, v=v, rate_hz=1000.0)
    q, v = run.q[-1], run.v[-1]
    settled_error = 1e3 * np.abs(run.error[len(run.t) // 2 :])  # its second half
    joint = robot.joint_names[int(settled_error.max(axis=0).argmax())]
    print(
        f"{begin:.0f} to {begin + 2:.0f}   {0 if plant is robot else 1:4d} kg   {label[plant is model]:8s}"
        f"{np.sqrt(np.mean(settled_error**2)):12.5f} {settled_error.max():13.5f}   {joint}"
    )
