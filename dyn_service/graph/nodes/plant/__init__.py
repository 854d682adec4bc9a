"""The plant node: a simulated or real robot that accepts commands and publishes its state.

node     the node's declaration; its loop, paced or in lockstep; topics: states, clock, commands, readings; services
factory  its parameters, and the plant made from them: drives, driver, engine, motors, sensors, safety settings
srvs     requests and responses of the services
report   recordings and counters, and its part of the report, with charts and verdicts
"""
