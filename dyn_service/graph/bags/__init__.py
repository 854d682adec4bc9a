"""Bags: recordings of topics and of requests, as MCAP files with ROS 2's schemas. See `docs/bags.md`.

motions       recorded motions as q, v, a and tau: of reports of launches, bags, files of NumPy
mcap_records  records of an MCAP file; `dyn bag repair`
playing       plays a bag
plotting      plots of signals
reader        reads bags, also for `dyn bag info`
writer        writes bags
recording     records topics
requests      records requests to a server; repeats them, also with Pinocchio, and compares the replies
"""
