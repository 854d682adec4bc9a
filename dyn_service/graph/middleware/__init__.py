"""Middleware of nodes: topics, services, timers, parameters and telemetry over ZeroMQ.

- `node.py`: `Node`, its executor, parameters, lifecycle and standard services; diagnostics
- `node_kind.py`: `NodeKind`, the declaration of a node, its `--help`, and its process
- `pacing.py`: periodic deadlines, lateness statistics, timers
- `topics.py`: names of topics and their endpoints
- `pubsub.py`: publishers and subscriptions
- `topic_tools.py`: publishing and subscribing without a node, for `dyn topic`
- `services.py`: services and their clients
- `dyn_service_srvs.py`: requests and responses of the standard services
- `graph.py`: which nodes exist, by files in a runtime folder
- `discovery.py`: all nodes of a user, for commands and recorders
- `telemetry.py`: messages from nodes to their launcher, and the store of what was received
- `stop.py`: stopping by signals, and with the launcher
"""
