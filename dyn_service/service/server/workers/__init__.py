"""Where slow requests are computed: worker processes that can be killed, or one thread.

pool           `Pool` of processes, `ThreadWorker`; deadlines, retries, loading of results into the server's process
process        entry point of that process and of the workers
pipes          messages and shared memory between server and workers
"""
