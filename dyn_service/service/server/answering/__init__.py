"""From the bytes of a request to the bytes of its reply, without sockets.

service    `Service`: reads, checks and answers requests
plan       one query on one robot: decoding, cost, kernels, and the fast path of single states
bounds     cost of a request against the limits of `protocol/limits.py`
registry   the served robots, and the queries that list, load and unload them
finite     explains numbers in an answer that are not finite
jobs       requests that were read or wait: tasks, deadlines, fair queue, compile notices
"""
