"""The docker backend: sandboxes that are containers, for tasks that bring a Dockerfile.

Reading order:

- `host.py`       images and containers; `sandbox.py` one container as a sandbox
- `process.py`    one program in a container
- `files.py`      files on their way into and out of containers
- `engine.py`     docker or podman, through its command-line program
"""
