"""The control laws of controller nodes. Laws evaluated in compiled code, in `simulate`: `api/laws.py`.

computed_torque       inverse dynamics with linear error feedback; gravity compensation with damping
joint_impedance       springs and dampers at the joints
cartesian_impedance   spring and damper at a point of a link
admittance            external torques move the reference
collision_stop        reacts to external torques above a threshold
touch                 the touched link and its wrench, from residuals of momenta
momentum_observer     estimates external torques from the momenta
trajectory_following  follows trajectory goals, by efforts, positions or velocities
"""
