"""The table of queries.

queries       the rows, declared as methods of `RobotQueries` and `GaitQueries`
arguments     inputs and options: wrenches, payloads, overlays, contacts, kinds of arrays
laws          control laws as data
results       results of queries with several outputs
spec          the types of rows, inputs, outputs and options
lists         lists of queries that one kernel answers
whole_body    the constants of a whole-body problem
closed_motion  the motions of closed loops, for simulations
description   the description of a robot that servers send
robot_properties  the properties of any robot, local or remote
inputs        checks of arguments against the table
outputs       the arguments `out` and `workers`
arrays        conversion of numbers to arrays
named         inputs given by names
cost          predicted cost of an answer
preparation   kernels to compile ahead of time, by purpose
"""
