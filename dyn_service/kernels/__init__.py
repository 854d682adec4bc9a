"""Kernels: the equations of a query on a robot, compiled to machine code and called as NumPy ufuncs.

signature    inputs and outputs of a kernel
frames       link frames of least cost without loss of accuracy
graph        traces a query on a tree into an expression graph
rolled       traces a query once per kind of body, as passes over the bodies
staged       kernels that call another several times: RK4
budget       chooses between the two, predicts and limits the size of a kernel
lower        expression graph or passes -> LLVM IR, one state per SIMD lane
trig, emitting, outside   parts of the IR: sine and cosine, tanh, types and loops, calls of Python's API
jit, compiling   LLVM IR -> machine code; from a graph to a function
loop        copies states into vectors and results back, for all kernels
turning     results in world axes
direct, wrenches   calls of kernels without NumPy's machinery, and their external wrenches
repeated     kernels called in turn, many times, in compiled code
certify, certificate   comparison of a kernel with its equations, and the result
store   the key of a kernel, and compiled kernels on disk
library      the kernels of one robot: compiled on first use, certified, kept in memory and on disk
selecting   selected rows of a kernel's outputs
making       notifications of compilations
"""
