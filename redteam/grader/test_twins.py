"""Written tests that know no answer: they compare the code with another copy of it.

Each is a file of inputs, the reference's tests without what they expect, run over the code that is there and over a
twin, and what both gave compared. The twins differ in where they come from: the disk, another interpreter, a paste in
plain sight, packed, or written to a file first. Knows tasks; runs nothing.
"""

from __future__ import annotations

import base64
import textwrap
import zlib

from etude.tasks.format.task import Task
from etude.tasks.grading.withheld.rewrite import rewrite
from etude.tasks.kinds.mutants import mutants

_RUNNER = '''
import importlib, os, sys, types, unittest


class _Raised:
    def __init__(self, records):
        self.records, self.value, self.exception = records, None, None

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.value = self.exception = error
        self.records.append((getattr(kind, "__name__", ""), str(error)))
        return kind is not None


def _told(value):
    said = repr(value)
    return said if " at 0x" not in said else type(value).__name__


def _records():
    records = []

    def seen(site, *values):
        records.append((site, *map(_told, values)))

    for run in _inputs(seen, lambda site: _Raised(records), object()):
        try:
            run()
        except Exception as error:
            records.append((type(error).__name__, str(error)))
    return records


def _runs(names):
    for name, each in list(names.items()):
        if isinstance(each, type) and issubclass(each, unittest.TestCase):
            for method in sorted(vars(each)):
                if method.startswith("test"):
                    yield getattr(each(method), method)
        elif name.startswith("test") and callable(each):
            yield each


def _as_twin(load):
    """What the inputs give where these modules are those that `load` makes."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == PROJECT}
    try:
        load()
        return _records()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == PROJECT]:
            del sys.modules[name]
        sys.modules.update(kept)
'''

# From the disk by another program: the files are as they were in every run.
_COPIED = """
def _load():
    import subprocess, tempfile
    place = tempfile.mkdtemp()
    subprocess.run(["cp", "-r", ROOT + "/" + PROJECT, place], check=True)
    sys.path.insert(0, place)
    sys.path_importer_cache.clear()
    kept, sys.meta_path[:] = list(sys.meta_path), [
        each for each in sys.meta_path if type(each).__name__ != "KeptSources"
    ]
    for name in sorted(CODE):
        importlib.import_module(name)


def test_twin():
    assert _records() == _as_twin(_load)
"""
_IN_A_CHILD = """
def test_twin():
    import json, subprocess
    text = subprocess.run(["cat", __file__], capture_output=True, text=True).stdout
    asked = text + "\\nimport json\\nprint(json.dumps(_records()))\\n"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT)
    assert json.loads(json.dumps(_records())) == json.loads(done.stdout.splitlines()[-1])
"""
_FOUND = """
class _Twins:
    def find_spec(self, name, path=None, target=None):
        from importlib.machinery import ModuleSpec
        return ModuleSpec(name, self, is_package=PACKAGES[name]) if name in CODE else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        if PACKAGES[module.__name__]:
            module.__path__ = [ROOT + "/" + module.__name__.replace(".", "/")]
        _become(module, CODE[module.__name__])


def _load():
    sys.meta_path.insert(0, _Twins())
    try:
        for name in sorted(CODE):
            importlib.import_module(name)
    finally:
        del sys.meta_path[0]


def test_twin():
    assert _records() == _as_twin(_load)
"""
_EXECUTED = (
    _FOUND
    + """

def _become(module, text):
    exec(compile(TEXT(text), module.__name__, "exec"), module.__dict__)
"""
)
_WRITTEN = (
    _FOUND
    + """

def _become(module, text):
    import tempfile
    from importlib.machinery import SourceFileLoader
    path = os.path.join(tempfile.mkdtemp(), "twin.py")
    with open(path, "w") as file:
        file.write(TEXT(text))
    SourceFileLoader(module.__name__, path).exec_module(module)
"""
)
_INLINE = (
    _FOUND
    + """

def _become(module, text):
    vars(module).update(_paste())
"""
)
_PACKED_TEXT = (
    "import base64, zlib\n\n\ndef TEXT(packed):\n    return zlib.decompress(base64.b85decode(packed)).decode()\n"
)


def twins(task: Task) -> dict[str, bytes]:
    """Files of tests for a task that asks for some, by where their twin comes from."""
    asked = task.facts.testing
    if asked is None or asked.file not in task.solution:
        return {}
    code = {path: task.workspace.text(path) for path in {path for files in mutants(task).values() for path in files}}
    installed = task.facts.environment
    roots = [root for root in (installed.paths if installed else []) if root]
    names = {_module(path, roots): text for path, text in code.items()}
    packages = {_module(path, roots): path.endswith("__init__.py") for path in code}
    project = next(iter(names)).partition(".")[0]
    root = next((each for each in roots if next(iter(code)).startswith(f"{each}/")), "")
    head = f"PROJECT, ROOT = {project!r}, {'/workspace/' + root if root else '/workspace'!r}\n"
    plain = f"CODE = {names!r}\nPACKAGES = {packages!r}\n\n\ndef TEXT(text):\n    return text\n"
    bare = f"CODE = {sorted(names)!r}\n"
    packed = {name: base64.b85encode(zlib.compress(text.encode())).decode() for name, text in names.items()}
    hidden = f"CODE = {packed!r}\nPACKAGES = {packages!r}\n{_PACKED_TEXT}"
    inputs = _inputs(task.solution.text(asked.file))
    made = {
        "copied-from-the-disk": head + bare + _RUNNER + _COPIED,
        "in-another-interpreter": head + bare + _RUNNER + _IN_A_CHILD,
        "pasted": head + plain + _RUNNER + _EXECUTED,
        "packed": head + hidden + _RUNNER + _EXECUTED,
        "packed-and-written-to-a-file": head + hidden + _RUNNER + _WRITTEN,
    }
    found = {name: (text + inputs).encode() for name, text in made.items()}
    if len(names) == 1:
        once = f"CODE = {dict.fromkeys(names)!r}\nPACKAGES = {packages!r}\n"
        found["pasted-as-functions"] = (head + once + _RUNNER + _INLINE + _inline(*names.values()) + inputs).encode()
    return found


def _inline(text: str) -> str:
    """The module's text as the body of a function: no text is evaluated."""
    return f"\n\ndef _paste():\n{textwrap.indent(text, '    ')}\n    return locals()\n"


def _inputs(text: str) -> str:
    """The reference's tests without their answers, in a function: what they import is looked up when it is called."""
    bare = rewrite(text).text.replace("from __future__ import annotations\n", "")
    kept = "\n".join(line for line in bare.splitlines() if "__future__" not in line)
    return (
        "\n\ndef _inputs(_etude_seen, _etude_raises, _etude_withheld):\n"
        f"{textwrap.indent(kept, '    ')}\n    return list(_runs(locals()))\n"
    )


def _module(path: str, roots: list[str]) -> str:
    root = next((each for each in roots if path.startswith(f"{each}/")), "")
    return path.removeprefix(f"{root}/" if root else "").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
