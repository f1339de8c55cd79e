"""The parts of scripts/bench.py.

Read in this order: `child` (run a program, and what it cost), `nginx` (the server, and what it counted), `tools` (the
command lines), `oroshi` (its own report), `sections` (what is measured), `machine` (where), `report` (how it is told).
`kept` is apart: it reads results of `oroshi lab` for the scripts that make tables of them.
"""
