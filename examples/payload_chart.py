"""Payload of the Panda over its workspace: the largest mass in the hand that the motors hold at rest."""

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dyn_service import Robot

robot = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf")
poses = 50_000
vary = {
    "q": {"uniform": "limits"},
    "payload.panda_hand.mass": {"values": [0.0, 1.0], "dim": "mass"},
    "payload.panda_hand.com": {"constant": [0.0, 0.0, 0.1]},
}
study = robot.study(
    vary,
    {
        "tau": {"query": "gravity_forces"},
        "hand": {"query": "link_poses", "output": "position", "select": {"link": ["panda_hand"]}},
    },
    samples={"sample": {"count": poses, "seed": 1}},
)
print(study.explain())
found = study.run()
empty, loaded = found.tau.values
per_kg = loaded - empty  # torques at rest are linear in the mass
limits = robot.limits.efforts
# the largest m with |empty + m per_kg| <= limits, joint by joint
with np.errstate(divide="ignore", invalid="ignore"):
    most = np.where(per_kg == 0.0, np.inf, (np.sign(per_kg) * limits - empty) / per_kg)
payload = np.where((np.abs(empty) <= limits).all(axis=1), most[:, :7].min(axis=1), 0.0)
place = found.hand.values[0, :, 0]
reach, height = np.hypot(place[:, 0], place[:, 1]), place[:, 2]
if len(sys.argv) > 1:
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    drawn = axes.hexbin(reach, height, C=payload, reduce_C_function=np.min, gridsize=40, vmax=8.0)
    figure.colorbar(drawn, label="payload of the weakest pose there, kg", extend="max")
    axes.set(xlabel="distance from the base axis, m", ylabel="height, m", aspect="equal")
    figure.savefig(sys.argv[1], dpi=150)
    print(f"{sys.argv[1]} written")
for low in np.arange(0.0, 1.0, 0.2):
    some = (reach >= low) & (reach < low + 0.2)
    least, half = payload[some].min(), np.median(payload[some])
    print(f"{low:.1f} to {low + 0.2:.1f} m from the axis: at least {least:.2f} kg, in half of the poses {half:.2f} kg")
