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
results = study.run()
empty, loaded = results.tau.values
per_kg = loaded - empty  # torques at rest are linear in the mass
limits = robot.limits.efforts
# the largest m with |empty + m per_kg| <= limits, joint by joint
with np.errstate(divide="ignore", invalid="ignore"):
    max_payload = np.where(per_kg == 0.0, np.inf, (np.sign(per_kg) * limits - empty) / per_kg)
payload = np.where((np.abs(empty) <= limits).all(axis=1), max_payload[:, :7].min(axis=1), 0.0)
place = results.hand.values[0, :, 0]
reach, height = np.hypot(place[:, 0], place[:, 1]), place[:, 2]
if len(sys.argv) > 1:
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    map_of_payload = axes.hexbin(reach, height, C=payload, reduce_C_function=np.min, gridsize=40, vmax=8.0)
    figure.colorbar(map_of_payload, label="payload of the weakest pose there, kg", extend="max")
    axes.set(xlabel="distance from the base axis, m", ylabel="height, m", aspect="equal")
    figure.savefig(sys.argv[1], dpi=150)
    print(f"{sys.argv[1]} written")
for low in np.arange(0.0, 1.0, 0.2):
    in_bin = (reach >= low) & (reach < low + 0.2)
    min_payload, half = payload[in_bin].min(), np.median(payload[in_bin])
    print(
        f"{low:.1f} to {low + 0.2:.1f} m from the axis: at least {min_payload:.2f} kg, in half of the poses "
        f"{half:.2f} kg"
    )
