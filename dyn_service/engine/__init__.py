"""The table of queries, answered in this process."""
