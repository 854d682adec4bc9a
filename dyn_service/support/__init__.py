"""YAML with line numbers, parameters, ROS 2's arguments, logs and other helpers of programs.

arguments.py               command line of a node, as in ROS 2
documents.py               YAML with line numbers, converted to typed structs
validation.py              checks of values against typed structs
interrupts.py              SIGINT during startup
logs.py                    log lines as text or JSON
optional.py                optional libraries and the extras that install them
parameters.py              parameters of a node from files and command line
parameter_descriptions.py  names, types, ranges and sentences of parameters
realtime.py                scheduling class, affinity and locked memory of a process
shipped.py                 shipped robots, parameter files and launch files
suggestions.py             "did you mean" of error messages
"""
