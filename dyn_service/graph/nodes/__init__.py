"""The nodes of this package.

- `server.py`: the dynamics server
- `plant/`: a simulated or real robot
- `controllers/`: one module per control law
- `robot_state_publisher.py`: joint states to `tf`
- `ros2_bridge.py`: topics to and from ROS 2 over DDS
- `registry.py`: finds nodes by package and name
"""
