"""States of controllers, as in ros2_control."""

from dyn_service.messages.fields import Message
from dyn_service.messages.std_msgs import Header
from dyn_service.messages.trajectory_msgs import JointTrajectoryPoint, MultiDOFJointTrajectoryPoint


class InterfaceValue(Message, frozen=True):
    """Numbers by their names."""

    interface_names: list[str] = []
    values: list[float] = []


class DynamicJointState(Message, frozen=True):
    """Named numbers of each joint, or of another part; `interface_values` has one entry per name. As in Jazzy."""

    header: Header = Header()
    joint_names: list[str] = []
    interface_values: list[InterfaceValue] = []


class JointTrajectoryControllerState(Message, frozen=True):
    """State of a joint trajectory controller at the header's stamp: reference, measured value, error and
    command. As in Jazzy.
    """

    header: Header = Header()
    joint_names: list[str] = []
    reference: JointTrajectoryPoint = JointTrajectoryPoint()
    feedback: JointTrajectoryPoint = JointTrajectoryPoint()
    error: JointTrajectoryPoint = JointTrajectoryPoint()
    output: JointTrajectoryPoint = JointTrajectoryPoint()
    multi_dof_joint_names: list[str] = []
    multi_dof_reference: MultiDOFJointTrajectoryPoint = MultiDOFJointTrajectoryPoint()
    multi_dof_feedback: MultiDOFJointTrajectoryPoint = MultiDOFJointTrajectoryPoint()
    multi_dof_error: MultiDOFJointTrajectoryPoint = MultiDOFJointTrajectoryPoint()
    multi_dof_output: MultiDOFJointTrajectoryPoint = MultiDOFJointTrajectoryPoint()
