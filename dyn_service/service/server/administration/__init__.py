"""Keys, roles, audit log and metrics of a server.

access     the list of allowed keys, roles of clients, the folder that contains keys
audit      the log of loaded and unloaded robots
metrics    counters and latencies
"""
