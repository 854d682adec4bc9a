"""Kernels: the equations of a query on a robot, compiled to machine code and called as NumPy ufuncs.

signature       inputs and outputs of a kernel
frames          link frames of least cost without loss of accuracy
graph           traces a query on a tree into an expression graph
rolled          traces a query once per kind of body, as passes over the bodies
staged          kernels that call another one in each stage of a step: RK4, derivatives of steps
budget          chooses between `graph` and `rolled`; limits the size of a kernel
lower           expression graph or passes -> LLVM IR, one state per SIMD lane
tiles           compiled loops of studies: Sobol's points, reductions, histograms
trig            parts of the IR: sine and cosine, tanh
llvm_ir         parts of the IR: types and loops
python_api      parts of the IR: calls of Python's API
jit             LLVM IR -> machine code
compiling       traced kernel -> NumPy ufunc
loop            copies states into vectors and results back, for all kernels
row_rotation    results and wrenches rotated to other axes, and moved torques
direct          calls of kernels without the cost of a NumPy ufunc
wrenches        external wrenches of direct calls
rollout         several kernels called in turn, many times, in compiled code
certify         comparison of a kernel with its equations
certificate     the result of this comparison
store           the key of a kernel, and compiled kernels on disk
library         the kernels of one robot: compiled on first use, certified, kept in memory and on disk
row_selection   selected rows of a kernel's outputs
export          kernels as C functions in an object file, for this processor or another
compile_events  notifications of compilations
"""
