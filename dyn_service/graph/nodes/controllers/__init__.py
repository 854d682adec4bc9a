"""Controller nodes: one module per law, each a process's entry point, and the loop that they share.

- `computed_torque.py`, `gravity_compensation.py`, `joint_impedance.py`, `cartesian_impedance.py`, `admittance.py`,
  `collision_stop.py`, `trajectory_following.py`: parameters of a law, and its node
- `controller_kind.py`: declares a controller node from a law
- `parameters.py`: parameters of all controllers and of reference motions
- `control_loop.py`: the loop; topics and services of a law
- `report.py`: recordings of requests and of a law's signals, and a controller's part of the report
"""
