"""What can be asked of a robot, declared once: the table of queries, its kinds, its results."""
