"""Joint trajectories."""

from dyn_service.messages.builtin_interfaces import Duration
from dyn_service.messages.fields import Message
from dyn_service.messages.geometry_msgs import Transform, Twist
from dyn_service.messages.std_msgs import Header


class JointTrajectoryPoint(Message, frozen=True):
    """Set point of the joints at `time_from_start`; each list is empty or has one entry per joint."""

    positions: list[float] = []
    velocities: list[float] = []
    accelerations: list[float] = []
    effort: list[float] = []
    time_from_start: Duration = Duration()


class MultiDOFJointTrajectoryPoint(Message, frozen=True):
    """Set point of multi-DOF joints at `time_from_start`."""

    transforms: list[Transform] = []
    velocities: list[Twist] = []
    accelerations: list[Twist] = []
    time_from_start: Duration = Duration()


class JointTrajectory(Message, frozen=True):
    """A motion of the joints `joint_names`; it begins at the header's stamp, at once where that is zero."""

    header: Header = Header()
    joint_names: list[str] = []
    points: list[JointTrajectoryPoint] = []
