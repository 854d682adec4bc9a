"""The table of queries, computed in this process.

robot        `Robot`: queries answered by kernels compiled for this robot
calls        calls resolved once for each combination of options
buffers      memory of large results, which is reused
wrenches, overlay   arguments of calls -> inputs of kernels
rows         names and axes of the rows of results
rollouts     many steps of a simulation, with a control law
overlaid     a robot with an overlay: kernels of the original, changed numbers
"""
