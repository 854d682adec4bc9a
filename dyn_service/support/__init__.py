"""YAML with line numbers, parameters, ROS 2's arguments, logs and other helpers of programs.

arguments               command line of a node, as in ROS 2
buffers                 memory of large results, which is reused
documents               YAML with line numbers, converted to typed structs
files                   replacing a file as a whole
upward                  functions of higher folders, by name
validation              checks of values against typed structs
interrupts              SIGINT during startup
lazy_names              public names of a package, imported when they are first used
logs                    log lines as text or JSON
optional                optional libraries and the extras that install them
parameters              parameters of a node from files and command line
parameter_descriptions  names, types, ranges and sentences of parameters
realtime                scheduling class, affinity and locked memory of a process
shipped                 shipped robots, parameter files and launch files
suggestions             "did you mean" of error messages
threads                 waiting for the end of a thread, within a bound
"""
