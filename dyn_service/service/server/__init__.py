"""The server: requests in, replies out.

app              `Server`: sockets and event loop; `open_server`: a server from its settings
dispatcher       requests to answers or to workers; no sockets
settings         the parameters of a server; loads no engine
process          limits and statistics of the server's process
transport/       tcp and ipc endpoints, encrypted or not
answering/       from the bytes of a request to the bytes of its reply; no sockets
workers/         processes that compute slow requests
administration/  keys, roles, audit log, metrics
"""
