"""Choose the gains of a controller: 1,200 closed loops of a Panda with an unknown payload, in one call."""

from pathlib import Path

import numpy as np

from dyn_service import Payload, PDLaw, Robot

panda = Robot.from_urdf(Path(__file__).parent.parent / "urdf" / "panda.urdf")
home = np.array([0.0, -0.5, 0.0, -2.0, 0.0, 1.5, 0.8, 0.02])
dt, steps = 1e-3, 500

# The reference: all joints but the fingers swing by 0.3 rad, from rest to rest.
share = np.linspace(0.0, 1.0, steps)[:, None]
reach = np.array([0.3] * 7 + [0.0])
blend = 10 * share**3 - 15 * share**4 + 6 * share**5
rate = (30 * share**2 - 60 * share**3 + 30 * share**4) / (steps * dt)
q_ref, v_ref = home + reach * blend, reach * rate

# One closed loop for each natural frequency, damping ratio and mass in the hand; the law does not know the mass.
grid = np.meshgrid(np.linspace(5.0, 40.0, 15), np.linspace(0.2, 2.0, 10), np.linspace(0.1, 3.0, 8), indexing="ij")
omega, ratio, mass = (axis.reshape(-1) for axis in grid)
inertia = np.diagonal(panda.mass_matrix(home))
law = PDLaw(
    kp=inertia * omega[:, None, None] ** 2,  # (members, 1, nv): one for each member, the same in all steps
    kd=inertia * (2.0 * ratio * omega)[:, None, None],
    q_ref=q_ref,  # (steps, nq): one for each step
    v_ref=v_ref,
    compensation="gravity",
    limit=panda.limits.efforts,
    model=panda,
)
loaded = panda.with_payload(Payload("panda_hand", mass))
motion = loaded.simulate(home, np.zeros(panda.nv), law, dt=dt, steps=steps, every=10, integrator="semi_implicit_euler")

error = np.abs(motion.q[:, 1:, :7] - q_ref[9::10, :7]).max(axis=(1, 2)).reshape(15, 10, 8).max(axis=2)
best = np.unravel_index(np.argmin(error), error.shape)
print(f"{len(omega)} closed loops of {steps} steps, each with its own gains and mass in the hand")
print(
    f"least error with the worst mass: {np.degrees(error[best]):.2f} degrees, "
    f"at {omega.reshape(15, 10, 8)[best][0]:.1f} rad/s with damping ratio {ratio.reshape(15, 10, 8)[best][0]:.1f}"
)
print(f"largest error of all gains: {np.degrees(error.max()):.1f} degrees")

# The same law as a function of (t, q, v) gives the same bits, one step at a time.
law_data = PDLaw(kp=inertia * 400.0, kd=inertia * 40.0, q_ref=q_ref, v_ref=v_ref, compensation="gravity")
data, function = (
    panda.simulate(home, np.zeros(panda.nv), law, dt=dt, steps=steps)
    for law in (law_data, law_data.function(panda, dt))
)
print("the same bits as a function:", data.q.tobytes() == function.q.tobytes())
