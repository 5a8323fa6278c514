"""Which names, ports and addresses a sandbox may reach through the proxy. No sockets; a resolver is given."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from etude.core.errors import EtudeError

_NAME: Final = re.compile(r"(?=.{1,253}\Z)(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", re.ASCII)
_PORTS: Final = (80, 443)
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_PUBLIC6: Final = ipaddress.ip_network("2000::/3")  # all that was ever given out; `is_global` takes fec0::/10 as well

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """A request that the policy does not allow; the sentence goes to the program and to the log."""


@dataclass(frozen=True)
class AllowedHost:
    name: str  # lower case, without a dot at its end
    below: bool  # `*.name`: those below it, and not itself
    ports: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> AllowedHost:
        """`name`, `*.name` or either with `:port`."""
        host, colon, port = text.strip().partition(":")
        below = host.startswith("*.")
        try:
            name = normal_name(host[2:] if below else host)
            ports = (int(port),) if colon else _PORTS
        except (Refused, ValueError):
            raise EtudeError(f"{text!r} cannot be allowed: give a name, *.name or name:port") from None
        return cls(name, below, ports)

    def allows(self, name: str, port: int) -> bool:
        same = name.endswith(f".{self.name}") if self.below else name == self.name
        return same and port in self.ports


@dataclass(frozen=True)
class EgressPolicy:
    """The names that may be reached; `private` may be at addresses that are not public (a mirror of one's own)."""

    hosts: tuple[AllowedHost, ...]
    private: tuple[AllowedHost, ...] = ()

    @classmethod
    def of(cls, hosts: Collection[str], private: Collection[str] = ()) -> EgressPolicy:
        return cls(tuple(map(AllowedHost.read, hosts)), tuple(map(AllowedHost.read, private)))

    def check_name(self, name: str, port: int) -> str:
        """The name as it is resolved; `Refused` for one that is not allowed. Nothing is resolved before this."""
        found = normal_name(name)
        if not any(each.allows(found, port) for each in (*self.hosts, *self.private)):
            raise Refused(f"{found}:{port} is not allowed")
        return found

    def check_addresses(self, name: str, port: int, found: Collection[str], own: Collection[Address]) -> None:
        """All of a name's addresses must be allowed: one that is not means that somebody plays with names."""
        if not found:
            raise Refused(f"{name} has no address")
        if any(each.allows(name, port) for each in self.private):
            return
        for text in found:
            address = embedded(ipaddress.ip_address(text.partition("%")[0]))
            inside = address.version == 6 and address not in _PUBLIC6
            if inside or not address.is_global or address.is_multicast or address.is_reserved or address in own:
                raise Refused(f"{name} is at {address}, which is not a public address of another machine")


def normal_name(text: str) -> str:
    """A host name in its one spelling; `Refused` for addresses and for what is no name."""
    name = text.lower() if text.isascii() else ""
    name = name.removesuffix(".")
    if not _NAME.fullmatch(name):
        raise Refused("that is no host name")
    # `127.1`, `0x7f000001`, `2130706433`: whatever a resolver would take for an address is none of our names.
    last = name.rpartition(".")[2]
    if re.fullmatch(r"\d+|0x[0-9a-f]*", last):
        raise Refused("addresses are not allowed, only names")
    return name


def embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, where it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address


def own_addresses(read: Callable[[str], str] = lambda path: Path(path).read_text()) -> set[Address]:
    """Addresses of this machine, from the kernel's tables: those of its own must not be reached either."""
    found: set[Address] = set()
    with suppress(OSError):
        last = ""
        for line in read("/proc/net/fib_trie").splitlines():
            if "|-- " in line:
                last = line.split("|-- ")[1].strip()
            elif "/32 host LOCAL" in line:
                found.add(ipaddress.ip_address(last))
    with suppress(OSError):
        for line in read("/proc/net/if_inet6").splitlines():
            found.add(ipaddress.IPv6Address(int(line.split()[0], 16)))
    return found
