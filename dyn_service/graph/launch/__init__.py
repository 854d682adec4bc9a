"""Launch files to supervised processes, and what they did to a report."""

from dyn_service.graph.launch.run import launch_file
from dyn_service.graph.launch.substitutions import show_arguments

__all__ = ["launch_file", "show_arguments"]
