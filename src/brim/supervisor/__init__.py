"""From a run file to a finished run, and what happens when it is stopped on the way.

folder.py    the files of a run, by name
setup.py     run file -> corpus, program, step
planning.py  planning in a process of its own, so that the device is free when training starts
training.py  train, stop, resume
"""
