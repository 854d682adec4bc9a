"""Launch files to supervised processes, and what they did to a report."""

from dyn_service.graph.launch.arguments import show_arguments
from dyn_service.graph.launch.run import launch_file

__all__ = ["launch_file", "show_arguments"]
