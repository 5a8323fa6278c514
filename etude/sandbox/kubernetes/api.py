"""The API server of a Kubernetes cluster: create, list and delete objects of one namespace.

Inside a cluster the pod's own account is used. From outside, `kubectl proxy` is: it knows the kubeconfig, and
`ETUDE_KUBERNETES` names its address. Credentials are never read from anywhere else.
"""

from __future__ import annotations

import ipaddress
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import aiohttp

from etude.core.errors import EtudeError
from etude.sandbox.kubernetes.manifest import Manifest

PROXY: Final = "ETUDE_KUBERNETES"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SECONDS: Final = 30.0  # for one answer
_PATHS: Final = {
    "Pod": "api/v1/namespaces/{}/pods",
    "Secret": "api/v1/namespaces/{}/secrets",
    "NetworkPolicy": "apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
}


class ApiRefused(EtudeError):
    """The API server said no. `code` is HTTP's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class KubernetesApi:
    """One namespace. `KubernetesApi.find()`, then `async with`."""

    def __init__(self, address: str, namespace: str, account: Path | None = None) -> None:
        self.address, self.namespace, self.account = address.rstrip("/"), namespace, account
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    def find(cls, namespace: str = "", variables: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> Self:
        """The proxy that `ETUDE_KUBERNETES` names, or the cluster that this process is a pod of."""
        proxy, host = variables.get(PROXY, ""), variables.get("KUBERNETES_SERVICE_HOST", "")
        if proxy:
            _check_proxy(proxy)
            return cls(proxy, namespace or "default")
        if host and (account / "token").exists():
            own = (account / "namespace").read_text().strip() if (account / "namespace").exists() else "default"
            name = f"[{host}]" if ":" in host else host
            return cls(f"https://{name}:{variables.get('KUBERNETES_SERVICE_PORT', '443')}", namespace or own, account)
        raise EtudeError(
            f"no Kubernetes cluster is known here: run `kubectl proxy` and set {PROXY}=http://127.0.0.1:8001, or run "
            "this in a pod with a service account"
        )

    async def __aenter__(self) -> Self:
        checked: Any = True
        if self.account is not None:
            with _account():
                checked = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        # Not through a proxy of the environment: these are addresses of the cluster or of this machine.
        connector = aiohttp.TCPConnector(ssl=checked)
        timeout = aiohttp.ClientTimeout(total=SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def create(self, body: Manifest) -> Manifest:
        return await self._ask("POST", _PATHS[body["kind"]], body=body)

    async def list(self, kind: str, selector: str) -> list[Manifest]:
        found = await self._ask("GET", _PATHS[kind], query={"labelSelector": selector})
        items = found.get("items") or []
        return [each for each in items if isinstance(each, dict)]

    async def delete(self, kind: str, name: str) -> None:
        """One that is gone already is no error."""
        with unless(404):
            await self._ask("DELETE", f"{_PATHS[kind]}/{name}", body={"propagationPolicy": "Background"})

    async def _ask(
        self, method: str, path: str, body: Manifest | None = None, query: Mapping[str, str] | None = None
    ) -> Manifest:
        assert self._session is not None
        headers = {"Accept": "application/json"}
        if self.account is not None:
            # Read each time: the cluster replaces it every hour.
            with _account():
                headers["Authorization"] = f"Bearer {(self.account / 'token').read_text().strip()}"
        url = f"{self.address}/{path.format(self.namespace)}"
        try:
            asked = self._session.request(method, url, json=body, params=query, headers=headers, allow_redirects=False)
            async with asked as answer:
                text = await answer.text(errors="replace")
                code = answer.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EtudeError(
                f"the API server at {self.address} does not answer: {error or type(error).__name__}"
            ) from None
        found: Any = None
        with suppress(ValueError):
            found = json.loads(text)
        if code >= 300:
            words = found.get("message", "") if isinstance(found, dict) else text[:200]
            raise ApiRefused(code, f"the API server refused {method} {path.format(self.namespace)}: {code} {words}")
        if not isinstance(found, dict):
            raise EtudeError(f"the API server at {self.address} answered with no JSON object")
        return found


@contextmanager
def _account() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EtudeError(f"the account of this pod cannot be used: {error}") from None


@contextmanager
def unless(code: int) -> Iterator[None]:
    """No error where the API server answers with that code."""
    try:
        yield
    except ApiRefused as refused:
        if refused.code != code:
            raise


def _check_proxy(address: str) -> None:
    """What has no certificate to check must be on this machine."""
    parts = urlsplit(address)
    local = parts.hostname == "localhost"
    with suppress(ValueError):
        local = local or ipaddress.ip_address(parts.hostname or "").is_loopback
    if parts.scheme != "http" or not local:
        raise EtudeError(
            f"{PROXY} is {address!r}; it names a `kubectl proxy` of this machine, as http://127.0.0.1:8001"
        )
