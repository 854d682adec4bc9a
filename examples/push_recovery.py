"""A moving arm is pushed: how soon is the push detected, how does the arm react, and how does it continue?

The collision stop of a Panda and its plant, with brakes, watchdog and limits, both as in their nodes, in simulated
time. At 1.5 s a force pushes the hand for a tenth of a second. The arm leaves its motion and holds its position by
springs, or floats without weight. Once it rests it is released, which shuts the brakes; a second controller arms it,
and the motion continues. `quadruped_stands.py` pushes a quadruped.
"""

import math

import numpy as np

from dyn_service import Robot, Wrench, find_robot
from dyn_service.control import ClosedLoop
from dyn_service.graph import PlantParameters, Registry, commander, make_plant

PERIOD_S, PUSH_S = 0.002, 0.1
robot = Robot.from_file(find_robot("panda"))
kind = Registry().find("dyn_service", "collision_stop")
configuration, hand = robot.configuration, robot.link_names.index("panda_hand")
push = Wrench("panda_hand", force=(0.0, 25.0, 0.0))  # N, world axes

print("            noticed after  predicted   hand strays   rests after    goes on with error below")
for action in ("hold", "float"):
    p = kind.parameters(rate_hz=1.0 / PERIOD_S, trajectory="multi_sine", action=action, hold_stiffness=300.0)
    plant = make_plant(robot, PlantParameters(robot="panda", control_rate_hz=p.rate_hz), session=1)
    control = commander(kind.spec, p, robot, number=1, restarted=False)
    loop = ClosedLoop(plant, control.answer, every=round(PERIOD_S / plant.dt_s))
    loop.run(1.5)
    assert plant.safety.mode == "active"
    assert not control.law.signals()["collision"]

    # the residual of a constant push rises as s (1 - exp(-K t)), at each joint: the first one past its threshold
    q, rest = plant.q, np.zeros(robot.nv)
    size = np.abs(robot.inverse_dynamics(q, rest, rest, wrenches=push) - robot.inverse_dynamics(q, rest, rest))
    predicted = -math.log(1.0 - (control.law.threshold / np.maximum(size, 1e-9)).min()) / p.observer_gain

    push_s, hand_start = plant.time_s, robot.link_poses(q).position[hand]
    noticed = rests = math.inf
    strays = 0.0
    plant.robot.push(push, round(PUSH_S / plant.dt_s))
    while rests == math.inf and plant.time_s < push_s + 5.0:
        state = loop.cycle()
        push_age_s = plant.time_s - push_s
        strays = max(strays, float(np.linalg.norm(robot.link_poses(plant.q).position[hand] - hand_start)))
        if noticed == math.inf and control.law.signals()["collision"]:
            noticed = state.stamp - push_s
        if push_age_s > PUSH_S and np.abs(plant.v).max() < 0.01:
            rests = push_age_s

    plant.offer(control.arming.release(plant.publish()))
    plant.advance(1)
    assert (plant.safety.mode, plant.safety.cause) == ("braked", "released")
    second = commander(kind.spec, p, robot, number=2, restarted=False)
    resumed = ClosedLoop(plant, second.answer, every=round(PERIOD_S / plant.dt_s))
    resumed.run(1.5)
    error = second.following.tracking.maximum
    print(
        f"{action:12s}{1e3 * noticed:9.0f} ms {1e3 * predicted:10.1f} ms {1e3 * strays:10.1f} mm {rests:12.2f} s "
        f"{error:19.0e} rad"
    )
    # one period until it is detected, and one for the trapezoidal rule of the observer's integral
    assert predicted <= noticed <= predicted + 2.0 * PERIOD_S
    assert plant.safety.mode == "active"
    assert not second.law.signals()["collision"]
    assert rests < 2.0
    assert error < 1e-4  # rad; the plant has the controller's model, 7e-7 rad
