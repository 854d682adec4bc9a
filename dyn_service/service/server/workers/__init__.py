"""Where slow requests are computed: worker processes that can be killed, or one thread.

pool       `Pool` of processes with its fork server, `ThreadWorker`; deadlines, retries, loading of results
process    what the fork server and the workers run
pipes      messages and shared memory between server and workers
"""
