"""With ROS 2 itself: rclpy and its default middleware, Fast DDS, from their wheels (`pip install --group test-ros2`).

python -m pytest tests/ros2 -m "slow or not slow"
"""

import os

DOMAIN = 10 + os.getpid() % 90
"""A DDS domain of this process: below the range of ephemeral ports."""
