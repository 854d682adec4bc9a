"""Rollouts in closed loop, on one core: `simulate` with a law given as data compared with `mujoco.rollout`.

    python -m benchmarks.rollouts [--quick] [--talos FILE]

Both compute the same motion: the robot is read from the same URDF; MuJoCo has motors with the gain kp, the bias
-kp q - kd v and the range of the limit, and gets q_ref + kd / kp v_ref as control, in every step. Its constraints,
contacts and damping are off, its steps are semi-implicit Euler or RK4. Its RK4 evaluates the motors at every stage,
while ours holds their efforts through the step, so only Euler's states are compared before they are timed. MuJoCo has
no inverse dynamics in its motors: computed torque is compared with the same PD law. Rounds alternate. Figures are
medians of us of CPU time per step of one member, with the ratio's first and last decile.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from time import process_time
from typing import Any

import numpy as np

from benchmarks.peers import GRAVITY, ROOT, bare
from dyn_service import ComputedTorqueLaw, PDLaw, Robot

Array = np.ndarray[Any, np.dtype[np.float64]]

DT_S = 1e-3
MEMBERS = (1, 256)
EVERY_TENTH = "PD, every tenth state recorded"
MAX_DIFFERENCE_RAD = 1e-9
"""Largest difference of the motions, rad."""


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one robot, few rounds")
    parser.add_argument("--talos", type=Path, help="URDF of TALOS; default: that of example-robot-data, if installed")
    arguments = parser.parse_args()
    robots = {"panda": ROOT / "urdf" / "panda.urdf"}
    humanoid = arguments.talos or talos()
    if humanoid is not None and not arguments.quick:
        robots["talos"] = humanoid
    print("| robot | members | integrator | law | dyn_service, us | MuJoCo, us | ratio | 10 % | 90 % |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, path in robots.items():
        for members in MEMBERS:
            for row in compared(name, bare(path), members, 5 if arguments.quick else 11):
                print("| " + " | ".join(row) + " |", flush=True)


def compared(name: str, urdf: str, members: int, rounds: int) -> list[list[str]]:
    """Returns rows of the table."""
    import mujoco
    from mujoco import rollout

    robot = Robot.from_text(urdf)
    rng = np.random.default_rng(0)
    n = robot.nv
    q0 = 0.2 * rng.normal(size=(members, n))
    steps = 5000 if members == 1 else 500
    t = DT_S * np.arange(steps)[:, None]
    size, pace = 0.1 * rng.normal(size=(members, 1, n)), rng.uniform(1.0, 3.0, n)
    q_ref, v_ref = q0[:, None] + size * np.sin(pace * t), size * pace * np.cos(pace * t)
    weight = np.diagonal(robot.mass_matrix(np.zeros(n)))
    kp, kd = 100.0 * weight, 10.0 * weight
    limit = 1e3
    model = with_motors(mujoco, urdf, kp, kd, limit, robot.joint_names)
    order = [model.joint(name).dofadr[0] for name in robot.joint_names]
    data = mujoco.MjData(model)
    start = np.zeros((members, mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)))
    start[:, 1 + np.array(order)] = q0
    # MuJoCo's position servos have no reference of velocity: kd v_ref is moved into that of position.
    control = np.ascontiguousarray(q_ref + kd / kp * v_ref)

    def mujoco_rollout() -> Array:
        states, _ = rollout.rollout(model, data, start, control)
        return states[..., -1, 1 : 1 + n][..., order]

    gravity = np.array([0.0, 0.0, -GRAVITY])
    pd = PDLaw(kp=kp, kd=kd, q_ref=q_ref, v_ref=v_ref, limit=limit)
    laws = {
        "PD": pd,
        EVERY_TENTH: pd,
        "PD without limit": PDLaw(kp=kp, kd=kd, q_ref=q_ref, v_ref=v_ref),
        "computed torque": ComputedTorqueLaw(kp=100.0, kd=20.0, q_ref=q_ref, v_ref=v_ref),
    }
    rows = []
    for integrator, mujoco_integrator in (
        ("semi_implicit_euler", mujoco.mjtIntegrator.mjINT_EULER),
        ("rk4", mujoco.mjtIntegrator.mjINT_RK4),
    ):
        model.opt.integrator = mujoco_integrator
        calls: dict[str, Callable[[], Array]] = {"MuJoCo": mujoco_rollout}
        for label, law in laws.items():
            options: dict[str, Any] = {"dt": DT_S, "steps": steps, "integrator": integrator, "gravity": gravity}
            options["every"] = 10 if label == EVERY_TENTH else 1
            calls[label] = lambda law=law, options=options: robot.simulate(
                q0, np.zeros_like(q0), law, **options, passive=False
            ).q[..., -1, :]
        ends = {label: call() for label, call in calls.items()}
        if integrator == "semi_implicit_euler":
            difference = np.abs(ends["PD"] - ends["MuJoCo"]).max()
            # Compared before it is believed: a peer that simulates another robot would be fast too. `not`, so that NaN
            # differs.
            if not difference <= MAX_DIFFERENCE_RAD:
                raise SystemExit(f"{name}: the motions differ by {difference:g} rad")
        us = times_us(calls, rounds, members * steps)
        rows += [[name, str(members), integrator, label, *figures(us[label], us["MuJoCo"])] for label in laws]
    return rows


def times_us(calls: Mapping[str, Callable[[], Array]], rounds: int, steps: int) -> dict[str, list[float]]:
    """Returns the us per step of each call, by round."""
    us: dict[str, list[float]] = {label: [] for label in calls}
    for _ in range(rounds):
        for label, call in calls.items():
            start_s = process_time()
            call()
            us[label].append((process_time() - start_s) / steps * 1e6)
    return us


def figures(own_us: Sequence[float], mujoco_us: Sequence[float]) -> list[str]:
    """Returns the figures of a row: both medians, and the median and deciles of the ratio of each round."""
    ratios = [numerator / denominator for numerator, denominator in zip(mujoco_us, own_us, strict=True)]
    low, *_, high = quantiles(ratios, n=10)
    return [f"{median(own_us):.3f}", f"{median(mujoco_us):.2f}", *(f"{x:.0f}" for x in (median(ratios), low, high))]


def with_motors(mujoco: Any, urdf: str, kp: Array, kd: Array, limit: float, joints: Sequence[str]) -> Any:
    """Returns the model of a URDF with a motor at each joint, in the order of `kp`."""
    spec = mujoco.MjSpec.from_string(urdf)
    compiler = spec.compiler
    compiler.discardvisual, compiler.balanceinertia, compiler.fusestatic = True, False, False
    for name, p, d in zip(joints, kp.tolist(), kd.tolist(), strict=True):
        motor = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        motor.gainprm[0], motor.biastype = p, mujoco.mjtBias.mjBIAS_AFFINE
        motor.biasprm[1], motor.biasprm[2] = -p, -d
        motor.forcelimited, motor.forcerange = True, (-limit, limit)
    model = spec.compile()
    model.opt.timestep, model.opt.gravity = DT_S, (0.0, 0.0, -GRAVITY)
    disabled = mujoco.mjtDisableBit
    model.opt.disableflags |= int(disabled.mjDSBL_CONSTRAINT) | int(disabled.mjDSBL_EULERDAMP)
    return model


def talos() -> Path | None:
    """Returns the file of the package example-robot-data, installed with Pinocchio."""
    spec = importlib.util.find_spec("pinocchio")
    places = Path(spec.origin).parents if spec is not None and spec.origin else ()
    names = (place / "share/example-robot-data/robots/talos_data/robots/talos_reduced.urdf" for place in places)
    return next((name for name in names if name.is_file()), None)


if __name__ == "__main__":
    main()
