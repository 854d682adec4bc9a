"""Moments at hip, knee and ankle in a recorded stride.

The segment equations of biomechanics (matrix formalism) on markers and a force plate: `data/stride.csv`. A stride
repeats itself, so its markers are smoothed, and differentiated, by the first harmonics of each.
"""

from pathlib import Path

import numpy as np

from dyn_service.formulations import segments

HARMONICS = 6
MASS = np.array([1.0, 3.5, 8.0])  # kg, of foot, shank and thigh: from the ground up
ABOUT_Y = np.array([0.004, 0.05, 0.14])  # kg m^2, about the centres of mass, across the stride
BELOW_UPPER_JOINT = np.array([0.36, 0.45, 0.43])  # of the way to the lower joint, of the foot to the toe

file = Path(__file__).parent / "data" / "stride.csv"
table = np.genfromtxt(file, delimiter=",", names=True, comments="#", skip_header=2)
t = table["t"]
base = 2.0 * np.pi / t[-1]
k = base * np.arange(1, HARMONICS + 1)
waves = np.hstack([np.ones((len(t), 1)), np.cos(np.outer(t, k)), np.sin(np.outer(t, k))])


def smoothed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a periodic signal (K, ..) smoothed by its harmonics, and its first and second derivative."""
    mean, cosines, sines = np.split(np.linalg.lstsq(waves, x, rcond=None)[0], [1, 1 + HARMONICS])
    c, s = np.cos(np.outer(t, k)), np.sin(np.outer(t, k))
    rate = c @ (k[:, None] * sines) - s @ (k[:, None] * cosines)
    second = -c @ (k[:, None] ** 2 * cosines) - s @ (k[:, None] ** 2 * sines)
    return mean + c @ cosines + s @ sines, rate, second


markers = np.stack(
    [np.stack([table[f"{m}_x"], 0 * t, table[f"{m}_z"]], axis=-1) for m in ("toe", "ankle", "knee", "hip")], axis=1
)
joints, _, _ = smoothed(markers.reshape(len(t), -1))
joints = joints.reshape(markers.shape)
lower, upper = joints[:, :3], joints[:, 1:]
com = upper + BELOW_UPPER_JOINT[:, None] * (lower - upper)
_, _, acceleration = smoothed(com.reshape(len(t), -1))
shank = lower - upper
angle = np.unwrap(np.arctan2(shank[..., 0], -shank[..., 2]), axis=0)  # about -y, from hanging
_, rate, second = smoothed(angle)
c, s, o, unity = np.cos(angle), np.sin(angle), 0.0 * angle, 1.0 + 0.0 * angle
to_segment = np.stack([np.stack([c, o, s], -1), np.stack([o, unity, o], -1), np.stack([-s, o, c], -1)], axis=-2)
distal = lower - com
distal[:, 0] = (
    np.stack([table["cop_x"], 0 * t, table["cop_z"]], axis=-1) - com[:, 0]
)  # of the foot: to where the ground pushes

stride = {
    "mass": MASS,
    "inertia": [np.diag([i, i, i]) for i in ABOUT_Y],
    "rotation": to_segment,
    "acceleration": acceleration.reshape(com.shape),
    "omega": np.stack([o, -rate, o], axis=-1),
    "omega_dot": np.stack([o, -second, o], axis=-1),
    "proximal": upper - com,
    "distal": distal,
    "ground_force": np.stack([table["force_x"], 0 * t, table["force_z"]], axis=-1),
    "gravity": (0.0, 0.0, -9.81),
}
loads = segments.inverse_dynamics(**stride)
print("joint   largest moment N m   at s    largest force N")
for name, moment, force in zip(
    ("ankle", "knee", "hip"), loads.moment[..., 1].T, np.linalg.norm(loads.force, axis=-1).T, strict=True
):
    worst = np.abs(moment).argmax()
    print(f"{name:6s} {-moment[worst]:14.1f} {t[worst]:12.2f} {force.max():14.1f}")

whole = segments.inverse_dynamics(**stride, method="matrix")
print(f"the block matrix of all segments at once: {np.abs(whole.moment - loads.moment).max():.0e} N m apart")
