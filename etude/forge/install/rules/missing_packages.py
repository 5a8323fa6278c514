"""What the words of a failed run ask for: modules, fixtures, options and plugins that are missing, by distribution.

A table says where the name that is imported is not the name that is installed; everything else is called the same.
Reads text and knows nothing else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from typing import Final

from etude.forge.install.project.requirements import canonical

_MODULE = re.compile(r"No module named ['\"]?([A-Za-z_][\w.]*)")
_SKIPPED = re.compile(r"could not import ['\"]([A-Za-z_][\w.]*)['\"]")
_FIXTURE = re.compile(r"fixture '(\w+)' not found")
_ARGUMENTS = re.compile(r"unrecognized arguments: (.*)")
_PLUGINS = re.compile(r"Missing required plugins: (.*)")
_SETTING = re.compile(r"Unknown config option: (\w+)")
_MARK = re.compile(r"['\"]?(?:Unknown pytest\.mark\.|)(\w+)['\"]? (?:not found in `markers`|- is this a typo)")
_DISTRIBUTION = re.compile(
    r"(?:PackageNotFoundError: No package metadata was found for|DistributionNotFound: The ')\s*([\w.-]+)"
)
_COMMAND = re.compile(
    r"_execute_child\b.*\n(?:(?!E\s).*\n){0,3}E\s+FileNotFoundError: \[Errno 2\] No such file or directory: '([\w+-]+)'"
)
_ASYNC = re.compile(r"async def functions are not natively supported|PytestUnhandledCoroutineWarning")
_ZONE = re.compile(r"ZoneInfoNotFoundError")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")

MODULES: Final = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cairo": "pycairo",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "defusedxml": "defusedxml",
    "distutils": "setuptools",
    "dns": "dnspython",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faker": "Faker",
    "flask_sqlalchemy": "Flask-SQLAlchemy",
    "fitz": "PyMuPDF",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "jose": "python-jose",
    "jwt": "PyJWT",
    "ldap3": "ldap3",
    "magic": "python-magic",
    "markdown": "Markdown",
    "mock": "mock",
    "MySQLdb": "mysqlclient",
    "nacl": "PyNaCl",
    "OpenSSL": "pyOpenSSL",
    "PIL": "Pillow",
    "pkg_resources": "setuptools<81",
    "psycopg2": "psycopg2-binary",
    "pythonjsonlogger": "python-json-logger",
    "pywintypes": "",
    "ruamel": "ruamel.yaml",
    "serial": "pyserial",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "slugify": "python-slugify",
    "socks": "PySocks",
    "sphinx": "Sphinx",
    "sqlalchemy": "SQLAlchemy",
    "twisted": "Twisted",
    "usb": "pyusb",
    "win32api": "",
    "winreg": "",
    "yaml": "PyYAML",
    "zmq": "pyzmq",
    "zope": "zope.interface",
}
FIXTURES: Final = {
    "aiohttp_client": "pytest-aiohttp",
    "benchmark": "pytest-benchmark",
    "cov": "pytest-cov",
    "data_regression": "pytest-regressions",
    "datadir": "pytest-datadir",
    "db": "pytest-django",
    "event_loop": "pytest-asyncio",
    "faker": "Faker",
    "file_regression": "pytest-regressions",
    "freezer": "pytest-freezer",
    "fs": "pyfakefs",
    "httpbin": "pytest-httpbin",
    "httpbin_secure": "pytest-httpbin",
    "httpserver": "pytest-httpserver",
    "httpx_mock": "pytest-httpx",
    "lazy_shared_datadir": "pytest-datadir",
    "mocker": "pytest-mock",
    "nursery": "pytest-trio",
    "requests_mock": "requests-mock",
    "respx_mock": "respx",
    "shared_datadir": "pytest-datadir",
    "snapshot": "syrupy",
    "subtests": "pytest-subtests",
    "time_machine": "pytest-time-machine",
    "xprocess": "pytest-xprocess",
}
OPTIONS: Final = {
    "--cov": "pytest-cov",
    "--no-cov": "pytest-cov",
    "-n": "pytest-xdist",
    "--numprocesses": "pytest-xdist",
    "--dist": "pytest-xdist",
    "--timeout": "pytest-timeout",
    "--benchmark": "pytest-benchmark",
    "--asyncio": "pytest-asyncio",
    "--reruns": "pytest-rerunfailures",
    "--hypothesis": "hypothesis",
    "--disable-socket": "pytest-socket",
    "--allow-hosts": "pytest-socket",
    "--html": "pytest-html",
    "--randomly": "pytest-randomly",
    "--random-order": "pytest-random-order",
    "--ds": "pytest-django",
    "--mypy": "pytest-mypy-plugins",
    "--snapshot": "syrupy",
    "--flake8": "pytest-flake8",
    "--black": "pytest-black",
    "--isort": "pytest-isort",
    "--pylint": "pytest-pylint",
    "--ruff": "pytest-ruff",
    "--checkdocs": "pytest-checkdocs",
    "--doctest-plus": "pytest-doctestplus",
    "--doctest-rst": "pytest-doctestplus",
    "--remote-data": "pytest-remotedata",
    "--regtest": "pytest-regtest",
    "--lazy-fixture": "pytest-lazy-fixtures",
}
SETTINGS: Final = {
    "asyncio_mode": "pytest-asyncio",
    "asyncio_default_fixture_loop_scope": "pytest-asyncio",
    "trio_mode": "pytest-trio",
    "timeout": "pytest-timeout",
    "env": "pytest-env",
    "DJANGO_SETTINGS_MODULE": "pytest-django",
    "mock_use_standalone_module": "pytest-mock",
    "doctest_plus": "pytest-doctestplus",
    "remote_data_strict": "pytest-remotedata",
}
MARKS: Final = {
    "asyncio": "pytest-asyncio",
    "anyio": "anyio",
    "trio": "pytest-trio",
    "timeout": "pytest-timeout",
    "flaky": "flaky",
    "benchmark": "pytest-benchmark",
    "django_db": "pytest-django",
    "parametrize_with_cases": "pytest-cases",
    "freeze_time": "pytest-freezer",
    "datafiles": "pytest-datafiles",
    "dependency": "pytest-dependency",
    "order": "pytest-order",
    "repeat": "pytest-repeat",
    "httpbin": "pytest-httpbin",
    "xdist_group": "pytest-xdist",
    "remote_data": "pytest-remotedata",
    "block_network": "pytest-recording",
    "vcr": "pytest-recording",
}


def requirements_of(text: str, own: Collection[str] = ()) -> list[str]:
    """The distributions that an output asks for, `own` modules left out: those are the repository's."""
    found: list[str] = []
    for module in [*_MODULE.findall(text), *_SKIPPED.findall(text)]:
        top = module.split(".")[0]
        if top in own or top in sys.stdlib_module_names - {"distutils"}:
            continue
        found.append(MODULES[module] if module in MODULES else MODULES.get(top, top))
    found += [FIXTURES[name] for name in _FIXTURE.findall(text) if name in FIXTURES]
    for words in _ARGUMENTS.findall(text):
        for word in words.split():
            found += [OPTIONS[option] for option in OPTIONS if _begins(word, option)]
    for words in _PLUGINS.findall(text):
        found += [word.strip() for word in words.split(",")]
    found += [SETTINGS[name] for name in _SETTING.findall(text) if name in SETTINGS]
    found += [MARKS[name] for name in _MARK.findall(text) if name in MARKS]
    found += [name for name in _DISTRIBUTION.findall(text) if canonical(name) not in {canonical(each) for each in own}]
    if _ASYNC.search(text):
        found.append("pytest-asyncio")
    if _ZONE.search(text):
        found.append("tzdata")
    unique = {canonical(re.split(r"[<>=\[;]", each)[0]): each for each in found if each}
    return [each for name, each in unique.items() if _NAME.fullmatch(name)]


def commands_of(text: str) -> list[str]:
    """Programs that tests start and that are not there."""
    return list(dict.fromkeys(_COMMAND.findall(text)))


def _begins(word: str, option: str) -> bool:
    if option.startswith("--"):
        return word == option or word.startswith((f"{option}=", f"{option}-"))
    return re.fullmatch(rf"{option}(\d+|auto)?", word) is not None


def last_error(text: str) -> str:
    """The line that says why, of all that pip or a build printed: an exception's, or else the last complaint."""
    lines = [line.strip(" |\u2502\u2570\u2500>") for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"(\w+\.)*\w*(Error|Exception)\b: \S", line)]
    said = [line for line in lines if line.startswith("ERROR: ")]
    return ascii((raised or said or lines or ["nothing was said"])[-1])[1:-1][:300]
