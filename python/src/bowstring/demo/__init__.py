"""The main job, on one machine: photographs are imported, served, and trained on for two epochs.

    bowstring demo
    python -m bowstring.demo --bowstring PROGRAM

It needs `bowstring[torch]` and the program, which the package's wheels for Linux bring.
"""
