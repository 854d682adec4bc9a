"""The control laws.

- `computed_torque.py`: inverse dynamics with linear error feedback; gravity compensation with damping
- `joint_impedance.py`: springs and dampers at the joints, or at a point of a link (Cartesian impedance)
- `admittance.py`: external torques move the reference
- `collision_stop.py`: reacts to external torques above a threshold
- `momentum_observer.py`: estimates external torques from the momenta
- `trajectory_following.py`: follows trajectory goals, by efforts, positions or velocities
"""
