#!/bin/bash
# Installs what a machine with torch and without a network lacks, from the wheels in .wheels.
if ! python -c "import pydantic, tomli_w, psutil, yaml, pytest" 2>/dev/null; then
    python -m pip install -q --no-index --find-links .wheels pydantic tomli-w psutil pyyaml pytest 2>&1 | tail -2
fi
