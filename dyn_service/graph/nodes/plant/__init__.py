"""The plant node: a simulated or real robot that accepts commands and publishes its state.

node     the node's declaration; its loop, paced or in lockstep; topics: states, clock, commands, readings; services
factory  its parameters, and the plant made from them: drives, driver, engine, sensors, safety settings
motors   motors of a simulated robot, their delays and limits, and elastic gears
srvs     requests and responses of the services
report   recordings and counters, and its part of the report, with charts and verdicts
"""
