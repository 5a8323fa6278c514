"""Sandbox hosts as pods of a Kubernetes cluster.

A pod is a sandbox host (`etude sandbox serve`), not one sandbox: a pod takes seconds to come up, a sandbox in it
milliseconds. Everything about sandboxes is the remote backend's; this room only makes the pods and finds them.

Reading order:

- `manifest.py`  what a pod, its secret and its network policy look like
- `api.py`       the API server: create, list, delete; by the pod's own account, or through `kubectl proxy`
- `pods.py`      `etude sandbox pods`: so many pods until told to end; and where those of a name are reached
"""
