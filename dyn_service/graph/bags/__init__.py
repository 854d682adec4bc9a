"""Bags: recordings of topics and of requests, MCAP files with ROS 2's schemas. See `docs/bags.md`."""
