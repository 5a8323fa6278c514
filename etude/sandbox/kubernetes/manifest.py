"""The objects of one fleet: pods that run `etude sandbox serve`, the secret with their token, a network policy.

Plain dictionaries as the API takes them (v1 and networking.k8s.io/v1). Knows no server.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Any, Final

from etude.core.errors import EtudeError

PORT: Final = 7433
FLEET: Final = "etude.sandbox/fleet"  # label of everything that belongs to a fleet
TOKEN_VARIABLE: Final = "ETUDE_SANDBOX_TOKEN"  # noqa: S105 - the variable's name
_TOKEN_KEY: Final = "token"  # noqa: S105 - its name in the secret
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")  # a DNS label, with space for a pod's own part

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Fleet:
    """What all pods of a name are like."""

    name: str
    image: str  # has this release of etude, and Python under the same path as the run
    cpus: str = "4"  # as Kubernetes writes quantities
    memory: str = "8Gi"
    places: int = 0  # sandboxes at once in each pod; 0 goes by its memory
    sandbox: str = "local"
    idle_seconds: float = 900.0  # without a client after which a pod ends
    privileged: bool = False
    pull_secret: str = ""  # name of one that is there, for the image

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise EtudeError(
                f"{self.name!r} cannot name a fleet: use 1 to 40 small letters, digits and dashes, no dash at an end"
            )

    @property
    def secret(self) -> str:
        return f"{self.name}-token"


def labels(fleet: str) -> dict[str, str]:
    return {FLEET: fleet, "app.kubernetes.io/name": "etude-sandboxes", "app.kubernetes.io/managed-by": "etude"}


def pod(fleet: Fleet, name: str) -> Manifest:
    """One sandbox host. It is restarted in place when it fails, and stays ended once nobody has used it for long."""
    command = ["etude", "sandbox", "serve", "--listen", f"$(POD_IP):{PORT}", "--sandbox", fleet.sandbox]
    command += ["--places", str(fleet.places), "--idle", f"{fleet.idle_seconds:g}", "--store", "/var/lib/etude"]
    amounts = {"cpu": fleet.cpus, "memory": fleet.memory}
    token = {"secretKeyRef": {"name": fleet.secret, "key": _TOKEN_KEY}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels(fleet.name)},
        "spec": {
            "restartPolicy": "OnFailure",
            # Task code must find no account of the cluster, and no list of its services.
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # Root in the pod is nobody on the node, where sandboxes are made without further privileges.
            "hostUsers": fleet.privileged,
            "terminationGracePeriodSeconds": 10,
            **({"imagePullSecrets": [{"name": fleet.pull_secret}]} if fleet.pull_secret else {}),
            "containers": [
                {
                    "name": "sandboxes",
                    "image": fleet.image,
                    "command": command,
                    "env": [
                        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": TOKEN_VARIABLE, "valueFrom": token},
                    ],
                    "ports": [{"name": "sandboxes", "containerPort": PORT, "protocol": "TCP"}],
                    "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 2, "failureThreshold": 3},
                    # Equal, so that a pod is among the last that a full node ends.
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": _security(fleet.privileged),
                    "volumeMounts": [{"name": "store", "mountPath": "/var/lib/etude"}],
                }
            ],
            "volumes": [{"name": "store", "emptyDir": {}}],
        },
    }


def _security(privileged: bool) -> Manifest:
    """Sandboxes are namespaces with mounts of their own inside the pod: what that needs, and no more."""
    if privileged:
        return {"privileged": True}
    return {
        "privileged": False,
        "capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN", "SETUID", "SETGID", "CHOWN", "DAC_OVERRIDE", "KILL"]},
        "procMount": "Unmasked",  # a sandbox mounts a /proc of its own
        "seccompProfile": {"type": "Unconfined"},  # the default one has no unshare and mount; sandboxes bring their own
    }


def secret(fleet: Fleet, token: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": fleet.secret, "labels": labels(fleet.name)},
        "type": "Opaque",
        "data": {_TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def network_policy(fleet: Fleet) -> Manifest:
    """Pods of the same namespace may come in, at the hosts' port alone."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{fleet.name}-hosts", "labels": labels(fleet.name)},
        "spec": {
            "podSelector": {"matchLabels": {FLEET: fleet.name}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }


def address_of(found: Manifest) -> str:
    """Where a pod that the API lists is reached; empty while it is not ready, or ends."""
    status = found.get("status") or {}
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or ())
    place = status.get("podIP") or ""
    if not ready or not place or (found.get("metadata") or {}).get("deletionTimestamp"):
        return ""
    return f"[{place}]:{PORT}" if ":" in place else f"{place}:{PORT}"


def is_over(found: Manifest) -> bool:
    """Whether a pod has ended for good."""
    return (found.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def why_waiting(found: Manifest) -> str:
    """Why a pod is not ready, in the cluster's own words; empty where it says nothing."""
    status = found.get("status") or {}
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return ": ".join(word for word in (waiting.get("reason"), waiting.get("message")) if word)
    for condition in status.get("conditions") or ():
        if condition.get("status") == "False" and condition.get("message"):
            return str(condition["message"])
    return str(status.get("message") or "")
