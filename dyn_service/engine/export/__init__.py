"""A robot as compiled functions that need no Python.

functions  queries as C functions: header, self-test, CMake file, acados.c for acados
inputs     inputs of the functions for wrenches, payload, friction
loops      functions of robots with closed loops
fmu        a robot as an FMU: fmu.c, which it compiles, and modelDescription.xml
"""
