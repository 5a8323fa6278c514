"""What a Python repository says about itself, read as text.

In reading order: `config_files`, `requirements`, `ci_commands`, `pytest_options`, `facts` (all of it together).
"""
