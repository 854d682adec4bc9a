"""The table of queries, computed in this process.

robot            `Robot`: queries answered by kernels compiled for this robot
calls            calls resolved once for each combination of options
wrenches         external wrenches of a call -> inputs of kernels
altered_trees    the trees of a robot with an overlay or payload
overlaid_robot   a robot with an overlay: kernels of the original, changed numbers
rows             names and axes of the rows of results
export           queries as C functions: header, self-test, CMake file, acados.c for acados
exported_inputs  inputs of exported functions for wrenches, payload, friction
fmu              a robot as an FMU: fmu.c, which it compiles, and modelDescription.xml
rollouts         many steps of a simulation, with a control law
"""
