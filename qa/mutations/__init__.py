"""Mutations: one small fault at a time is put into the package, and a test must turn red by it.

    python -m qa.mutations [--part dynamics] [--sample N] [--seed S] [--jobs J]

A suite that stays green while a term is dropped, a sign flipped or two arguments swapped does not hold that line.
`operators.py` makes the mutants of a module from its syntax tree; `plan.py` says which modules, and which tests are
likeliest to catch a mutant of each, quickest first; `run.py` tries each mutant in a process of its own;
`explained.toml` lists mutants that no test can catch, or that none should, with the reason; `report.py` writes
docs/mutations.md. The sources on disk are never touched: the mutant lives in the process that imports it.
"""
