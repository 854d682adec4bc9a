"""Explicit, slow implementations of the documents' equations, used to check the compiled kernels; gait segments.

bodies.py        Newton's and Euler's equations of single bodies, virtual power
cost.py          predicted time and memory of verification and of gait segments
lagrangian.py    Lagrange's equations of a system given by its energies
particles.py     constrained particles, projected on generalised coordinates
segments.py      inverse dynamics of gait segments
verification.py  residuals between all formulations; the influence operators as dense matrices
"""
