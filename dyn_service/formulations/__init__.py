"""Explicit, slow implementations of the documents' equations, used to check the compiled kernels; gait segments.

base_parameters  combinations of the dynamic parameters that motions can identify
bodies           Newton's and Euler's equations of single bodies, virtual power
cost             predicted time and memory of verification and of gait segments
segments         inverse dynamics of gait segments
systems          systems given by the places of particles or by their energies
verification     residuals between all formulations; the influence operators as dense matrices
"""
