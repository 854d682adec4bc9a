"""The nodes of this package.

server                 the dynamics server
plant/                 a simulated or real robot
controllers/           one module per control law
robot_state_publisher  joint states to `tf`
payload_estimator      joint states to the payload of a link
ros2_bridge            topics to and from ROS 2 over DDS
registry               finds nodes by package and name
"""

import sys

# While `python -m` locates a node's module, `sys.argv[0]` is "-m": Ctrl-C during the long imports of a node that runs
# by itself then prints no traceback.
if sys.argv[:1] == ["-m"]:
    from dyn_service.support.interrupts import end_at_once

    end_at_once()
