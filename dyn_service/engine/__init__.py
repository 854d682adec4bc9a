"""The table of queries, computed in this process.

robot             `Robot`: the public methods; loads a robot, and hands its calls over to an evaluator
evaluator         the steps of a call; the kernels of a robot
bound_calls       a query with chosen options: conversion of arguments, the forms of calls, threads
calls             bound calls by their options; robots of overlays
results           outputs of kernels -> results of methods
robot_model       the numbers of a robot, of its file or changed
refusals          queries without an answer for a robot
loops/            robots whose links form closed loops
constants         queries without inputs
computations      the functions of long computations
wrenches          external wrenches of a call -> inputs of kernels
altered_trees     the trees of a robot with an overlay or payload
rows              names and axes of the rows of results; arguments as arrays
descriptions      descriptions for clients, of an import, and of changed numbers as those of a file
export/           a robot as C functions and as an FMU
rollouts          many steps of a simulation, with a control law
"""
