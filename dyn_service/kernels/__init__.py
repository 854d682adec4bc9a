"""Equations to machine code to NumPy ufuncs: graph, lower, jit, gufunc; store keeps the result."""
