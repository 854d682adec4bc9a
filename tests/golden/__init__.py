"""The sentences of errors, warnings and notes, in one file.

    python -m tests.golden --write        # rewrites sentences.txt; review the diff

sentences.txt      for each case: its name, the error's class, its path, its sentence
everything.py      all cases by the module that provokes them
collecting.py      a case as it is in the file; rows of another test's table
descriptions.py    files of robots, with their notes, and joint files
arguments.py       arguments of robots, overlays, simulations, sensors, laws and plants
documents.py       launch files, parameters, messages, bags
requests.py        requests to a server, and answers that a client refuses
commands.py        `dyn` with wrong arguments
test_sentences.py  compares all of them with the file

Other tests check the class of an error, its path and the values that it names, not its words: `tests/phrases.py`.
The bad inputs are those of the other tests, so a new row of a table there is a new case here.
"""
