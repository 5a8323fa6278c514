"""Stand-ins for services that tests look for on this machine: which Python package serves in place of which.

What a failed run says tells who was not there, and mostly on which port. Reads text and knows nothing else: whether a
stand-in can be had, and whether the tests are content with it, others find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from etude.forge.environments.environment import PREFIX

_HERE: Final = r"(?:localhost|127\.0\.0\.1|::1)"
_PYTHON: Final = f"{PREFIX}/bin/python"
_LOWEST: Final = 1024  # ports below are for privileged programs, and a sandbox has none


@dataclass(frozen=True)
class StandIn:
    """A package that serves in place of something else."""

    name: str
    requirements: tuple[str, ...]
    argv: tuple[str, ...]  # with {port}
    asked: re.Pattern[str]  # what clients say that do not find it; the first group that took part is the port
    port: int  # where they do not say it
    env: Mapping[str, str] = field(default_factory=dict)  # with {port}: what clients need


STAND_INS: Final = (
    StandIn(
        "redis",
        ("fakeredis[lua]",),
        (_PYTHON, "-c", "import fakeredis; fakeredis.TcpFakeServer(('127.0.0.1', {port})).serve_forever()"),
        re.compile(rf"Error .{{1,300}}?connecting to {_HERE}:(\d{{1,5}})"),
        6379,
    ),
    StandIn(
        "aws",
        ("moto[s3]", "flask", "flask-cors"),
        (_PYTHON, "-m", "moto.server", "-H", "127.0.0.1", "-p", "{port}"),
        re.compile(
            rf'endpoint URL: "https?://(?:{_HERE}:(\d{{1,5}})|[\w.-]+\.amazonaws\.com)|InvalidAccessKeyId|InvalidClientTokenId'
            r"|NoCredentialsError|Unable to locate credentials|NoRegionError|You must specify a region"
        ),
        4566,
        {
            "AWS_ENDPOINT_URL": "http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "stand-in",
            "AWS_SECRET_ACCESS_KEY": "stand-in",
            "AWS_DEFAULT_REGION": "us-east-1",
        },
    ),
    StandIn(
        "mail",
        ("aiosmtpd",),
        (_PYTHON, "-m", "aiosmtpd", "-n", "-l", "127.0.0.1:{port}", "-c", "aiosmtpd.handlers.Sink"),
        re.compile(
            rf"smtplib\.py:\d+: in (?:(?!\n_{{5,}} )[\s\S]){{1,20000}}?address +=\s\('{_HERE}', (\d{{1,5}})\)"
            rf"|SMTPConnectError: Error connecting to {_HERE} on port (\d{{1,5}})"
        ),
        1025,
    ),
)
# A refusal that names no port: the values of local variables do.
UNNAMED: Final = re.compile(r"smtplib\.py:\d+: in (?:(?!\n_{5,} )[\s\S]){1,20000}?\nE +ConnectionRefusedError")


@dataclass(frozen=True)
class Asked:
    """A stand-in that a text asks for, and where it should listen."""

    stand_in: StandIn
    port: int

    @property
    def service(self) -> dict[str, Any]:
        argv = [word.format(port=self.port) for word in self.stand_in.argv]
        return {"name": self.stand_in.name, "argv": argv, "port": self.port}

    @property
    def env(self) -> dict[str, str]:
        return {name: value.format(port=self.port) for name, value in self.stand_in.env.items()}


def stand_ins_of(text: str) -> list[Asked]:
    """Each at most once, on the port that is named first."""
    found = []
    for stand_in in STAND_INS:
        ports = [next(filter(None, match.groups()), "") for match in stand_in.asked.finditer(text)]
        named = [int(port) for port in ports if port and _LOWEST <= int(port) <= 65535]
        if named or (ports and not any(ports)):
            found.append(Asked(stand_in, named[0] if named else stand_in.port))
    return found
