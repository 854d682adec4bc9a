"""Controller nodes: one module per law, each a process's entry point, and the loop that they share.

computed_torque       node: inverse dynamics with error feedback
gravity_compensation  node: the robot's weight, with damping
joint_impedance       node: springs and dampers at the joints
cartesian_impedance   node: a spring and a damper at a point of a link
admittance            node: external torques move the reference
collision_stop        node: reacts to external torques above a threshold
trajectory_following  node: follows trajectory goals
controller_kind       declares a controller node from a law; its loop, topics and services
parameters            parameters of all controllers and of reference motions
report                recordings of requests and of a law's signals, and a controller's part of the report
"""
