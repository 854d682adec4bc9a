"""ROS 2's topics over DDS (Eclipse Cyclone), without a ROS install: extra `ros2`. See `docs/ros2.md`."""
