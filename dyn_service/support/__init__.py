"""YAML with line numbers, parameters, and ROS 2's arguments."""
