"""Middleware of nodes: topics, services, timers, parameters and telemetry over ZeroMQ.

node              `Node`, its executor, parameters, lifecycle and standard services; diagnostics
node_kind         `NodeKind`, the declaration of a node, its `--help`, and its process
pacing            periodic deadlines, lateness statistics, timers
topics            names of topics and their endpoints
pubsub            publishers and subscriptions
topic_tools       publishing and subscribing without a node, for `dyn topic`
services          services and their clients
dyn_service_srvs  requests and responses of the standard services
graph             which nodes exist, by files in a runtime folder
discovery         all nodes of a user, for commands and recorders
telemetry         messages from nodes to their launcher, and the store of what was received
stop              stopping by signals, and with the launcher
zmq_sockets       contexts that close within a bound, messages whose sender is checked
"""
