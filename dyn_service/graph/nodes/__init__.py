"""The nodes of this package.

server                 the dynamics server
plant/                 a simulated or real robot
controllers/           one module per control law
robot_state_publisher  joint states to `tf`
ros2_bridge            topics to and from ROS 2 over DDS
registry               finds nodes by package and name
"""
