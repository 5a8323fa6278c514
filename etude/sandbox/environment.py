"""What a program finds in every backend whose sandbox does not decide it: its home folder and environment variables."""

from __future__ import annotations

from typing import Final

HOME: Final = "/home/agent"

ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    # Bytecode would be listed as a change of the workspace.
    "PYTHONDONTWRITEBYTECODE": "1",
}
