"""Control laws, references and plants, without processes, sockets or clocks.

command       interfaces (effort, position, velocity), commands and set points
law           `Law`, the base class of control laws; checks of their commands and gains; modal damping
trajectory    reference trajectories: multi-sine, point to point, piecewise polynomials
joint_goals   plans `JointTrajectory` goals; their tolerances
controller    a controller without its process: due times, reference, arming, commands
dry_run       a law against a simulated robot, without a plant's safety or, in lockstep, with it
joint_states  robot states to and from ROS messages
laws/         the control laws
plant/        a simulated or real robot behind its safety supervisor
"""
