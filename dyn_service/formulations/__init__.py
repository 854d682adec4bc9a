"""Explicit, slow implementations of the documents' equations, used to check the compiled kernels; gait segments.

base_parameters.py  combinations of the dynamic parameters that motions can identify
bodies.py        Newton's and Euler's equations of single bodies, virtual power
cost.py          predicted time and memory of verification and of gait segments
segments.py      inverse dynamics of gait segments
systems.py       systems given by the places of particles or by their energies
verification.py  residuals between all formulations; the influence operators as dense matrices
"""
