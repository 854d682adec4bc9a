"""Reads URDF, from text or from objects that another library has loaded.

loaded    objects of urdfpy, urchin and yourdfpy
loops     elements that close loops
reader    URDF text and files
"""
