"""Ways around the egress proxy: `ways.py` the programs, `run.py` the servers that must not be reached."""
