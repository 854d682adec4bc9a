"""Launching: launch files -> supervised processes -> a report.

cpu_time         where the CPU time of the machine went
display          the terminal output and the log files of a launch
orphan_cleanup   ends the processes of a launcher that was killed
planner          from a launch file to the processes to start
report           the report of a launch: its numbers, recordings and HTML page
run              runs a launch file
runtime          the private folder of a launch
schema           the YAML schema of launch files
substitutions    substitutions, conditions and arguments
supervisor       starts, restarts and stops the processes
"""

from dyn_service.graph.launch.run import launch_file
from dyn_service.graph.launch.substitutions import declared_arguments, show_arguments

__all__ = ["declared_arguments", "launch_file", "show_arguments"]
