"""The equations of motion as expressions, one module per formulation.

articulated.py     forward dynamics in O(N), the factored inverse of the mass matrix
body_frame.py      inverse dynamics in body frames, with intermediate results
configurations.py  neutral and random positions
constraint.py      joint wrenches and their constraint parts
coriolis.py        the Coriolis matrix
derivatives.py     first derivatives of inverse and forward dynamics and of steps
expressions.py     matrices of expressions, and the instructions that compute them
feedback.py        control laws that are linear in the error
hamilton.py        Hamilton's equations in (q, p)
integration.py     time steps
kinematics.py      poses of bodies, joint subspaces
loops.py           recursions recorded once per kind of body, for kernels of large robots
mass_matrix.py     mass matrix and forward dynamics through its factors
motion_derivatives.py  first derivatives of points, momenta and energies
newton_euler.py    inverse dynamics by the recursive Newton-Euler algorithm
operators.py       influence operators at a state
passive.py         damping, friction, armature and springs
projected.py       projected Newton-Euler equations
regressors.py      efforts, loads, momenta and energies, linear in the dynamic parameters
sensors.py         ideal force/torque sensors and IMUs
spatial.py         six-vectors and their transforms
sweeps.py          outward and inward recursions over the tree
symbolic.py        equations as readable text
task_space.py      task-space inertia and dynamics
topology.py        pairs of bodies on a common branch
"""
