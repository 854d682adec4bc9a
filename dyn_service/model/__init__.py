"""A robot as data: its description as read from a file, and the parent-first tree of its bodies.

arrays           types of arrays
building         description -> tree of links
composite        poses, total inertia and mass matrix in plain numbers
configuration    positions and velocities as arrays; integration on the manifold of positions
conventions      states in the conventions of MuJoCo and of ROS messages
description      links and joints as the file gives them
inertia          the ten inertial numbers of a body
joints/          joint types
loop_tree        the tree with the frames of its loop joints
mimic            mimic joints
motors           motors of joints: gear, winding, supply, heat
order            arrays in the caller's order of joints
parameters       the numbers of a tree that an overlay can replace
passive          damping, friction, armature, springs
rotations        rotation vectors of rotation matrices
steps            integration steps
traversal        the ways in which algorithms visit the bodies of a tree
tree             the tree
"""
