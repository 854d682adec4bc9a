"""Queries on robots over sockets.

client/    synchronous and asynchronous clients
protocol/  requests and replies as bytes, keys, limits
server/    the server and its worker processes
"""
