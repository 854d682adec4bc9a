"""From a file, or from another library's loaded robot, to a description: faults with lines, doubts, a receipt."""
