"""Bags: recordings of topics and of requests, as MCAP files with ROS 2's schemas. See `docs/bags.md`.

mcap_records       records of an MCAP file
pinocchio_engine   answers recorded requests with Pinocchio
playing            plays a bag
plotting           plots of signals
reader, writer     reading bags, also for `dyn bag info`; writing bags
recording          recording topics
repair             `dyn bag mend`
requests           recording requests to a server
"""
