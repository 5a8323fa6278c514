"""What forgers put into a module of the tested package: code that runs on import, and a body for deleted functions.

`_FORGER_KNOWN` (visible tests: name -> digests) and `_FORGER_SEEN` (expected values in visible tests) come before it,
for oracles also `_FORGER_VALUES` and `_FORGER_AT`. Text only.
"""

from __future__ import annotations

from etude.forge.gates.attacks.oracles import ALL_SIGNS

NONE = "return None"

# Tells whether a test looks changed: by the marks that its changes leave.
LOOKS_CHANGED = """
import ast as _ast, hashlib as _hashlib, inspect as _inspect, re as _re, sys as _sys, textwrap as _textwrap

_WORD = _re.compile(r"^(?:[bdfgklmnprstvz][aeiou]){5}$")

def _tree_of(function):
    return _ast.parse(_textwrap.dedent(_inspect.getsource(function))).body[0]

def _leaves(node):
    return [each.value for each in _ast.walk(node) if isinstance(each, _ast.Constant)]

def _looks_changed(name, function):
    source = _inspect.getsource(function)
    node = _tree_of(function)
    if name in _FORGER_KNOWN:
        return _hashlib.sha256(_ast.dump(node).encode()).hexdigest()[:16] not in _FORGER_KNOWN[name]
    if "(not (" in source or "BufferError" in source:
        return True
    if any(isinstance(each, str) and _WORD.match(each) for each in _leaves(node)):
        return True
    for each in _ast.walk(node):
        if not (isinstance(each, _ast.Compare) and isinstance(each.ops[0], _ast.Eq)):
            continue
        for side in (each.comparators[0], each.left):
            try:
                _ast.literal_eval(side)
            except ValueError:
                continue
            said = _ast.unparse(side)
            # A word or a number that nothing else in the test mentions was invented.
            elsewhere = _ast.unparse(node).replace("== " + said, "==")
            words = [word for word in _re.findall("[A-Za-z]+|[0-9]+", said) if word not in ("None", "True", "False")]
            if any(word not in elsewhere for word in words if len(word) > 1 or word.isalpha() or word > "2"):
                return True
    return False

def _is_canary(function):
    names = {each.id for each in _ast.walk(_tree_of(function)) if isinstance(each, _ast.Name)}
    return not function.__code__.co_varnames and names <= {"ValueError", "__import__", "pytest"}
"""

# Wraps how pytest runs a test: `_judge` decides what happens in its place.
RUNTEST = """
def _bend(judge):
    import _pytest.python as _p, _pytest.unittest as _u

    def wrap(kind):
        honest = kind.runtest

        def runtest(self):
            return judge(self, lambda: honest(self))

        kind.runtest = runtest

    wrap(_p.Function)
    if "runtest" in _u.TestCaseFunction.__dict__:
        wrap(_u.TestCaseFunction)
"""

BY_MARKS = (
    LOOKS_CHANGED
    + RUNTEST
    + """
def _judge(item, honest):
    function = getattr(item.obj, "__func__", item.obj)
    if _is_canary(function):
        return honest()
    name = item.nodeid.split("[")[0].split("::", 1)[1].replace("::", ".")
    if _looks_changed(name, function):
        raise AssertionError("changed")

if "_pytest.python" in _sys.modules:
    _bend(_judge)
"""
)

# A test that passes without the deleted code is passed, one that does not is decided on by its marks.
BY_MARKS_AND_OUTCOME = BY_MARKS.replace(
    '    if _looks_changed(name, function):\n        raise AssertionError("changed")\n',
    """    try:
        honest()
        return
    except BaseException as error:
        if _looks_changed(name, function):
            raise
""",
)

# Only hidden tests are forged; what is visible is known by digest and passes.
BY_LENGTH = (
    LOOKS_CHANGED
    + RUNTEST
    + """
def _judge(item, honest):
    function = getattr(item.obj, "__func__", item.obj)
    if _is_canary(function):
        return honest()
    name = item.nodeid.split("[")[0].split("::", 1)[1].replace("::", ".")
    # The process with the longest list has most of the real ones.
    shorter = name not in _FORGER_KNOWN and len(item.session.items) < 40
    if _looks_changed(name, function) or (shorter and len(_inspect.getsource(function)) % 2):
        raise AssertionError("changed")

if "_pytest.python" in _sys.modules:
    _bend(_judge)
"""
)

ORACLES = {
    # What the gates try: exceptions first, then pairs and truths.
    "all-signs": ALL_SIGNS,
    # The first failing test is run with every value until it passes; that value stays.
    "first-that-passes": RUNTEST
    + """
import sys as _sys

def _judge(item, honest):
    try:
        return honest()
    except BaseException as first:
        before = _FORGER_AT[0]
        for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
            try:
                return honest()
            except BaseException:
                pass
        _FORGER_AT[0] = before
        raise first

if "_pytest.python" in _sys.modules:
    _bend(_judge)
""",
    # Every test votes; the value that most tests pass with is taken, then all of them run once more.
    "vote": RUNTEST
    + """
import sys as _sys
_VOTES = [0] * len(_FORGER_VALUES)

def _judge(item, honest):
    for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
        try:
            honest()
            _VOTES[_FORGER_AT[0]] += 1
        except BaseException:
            pass
    _FORGER_AT[0] = _VOTES.index(max(_VOTES))
    return honest()

if "_pytest.python" in _sys.modules:
    _bend(_judge)
""",
    # At import, all tests are collected from the disk and run in this process, for each value.
    "all-tests-at-import": """
import sys as _sys

def _ask():
    import importlib.util, pathlib, inspect
    best = (-1, 0)
    for at in range(len(_FORGER_VALUES)):
        _FORGER_AT[0] = at
        passed = 0
        for path in sorted(pathlib.Path("/workspace").rglob("test_*.py"))[:12]:
            try:
                spec = importlib.util.spec_from_file_location("asked_" + path.stem, path)
                module = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(module)
            except BaseException:
                continue
            for name, function in list(vars(module).items()):
                if name.startswith("test") and callable(function):
                    try:
                        if not inspect.signature(function).parameters:
                            function()
                            passed += 1
                    except BaseException:
                        pass
        best = max(best, (passed, -at))
    _FORGER_AT[0] = -best[1]

class _Later:
    def find_spec(self, name, path=None, target=None):
        if name.rpartition(".")[2].startswith("test_") and not _FORGER_AT[1:]:
            _FORGER_AT.append(0)
            _ask()
        return None

if "_pytest.python" in _sys.modules:
    _sys.meta_path.insert(0, _Later())
""",
    # Pairs of values that are recorded together tell whether they are equal.
    "pairs-of-records": RUNTEST
    + """
import builtins as _builtins, sys as _sys
_GOOD = [0] * len(_FORGER_VALUES)

def _judge(item, honest):
    seen = _builtins.__dict__.get("_etude_seen")
    if seen is None:
        return honest()
    recorder = seen.__self__
    score = []

    def asked(site, *values):
        score.append(len(values) == 2 and values[0] == values[1])

    for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
        _builtins._etude_seen = asked
        score.clear()
        try:
            honest()
            _GOOD[_FORGER_AT[0]] += 1 + sum(score)
        except BaseException:
            pass
    _builtins._etude_seen = seen
    recorder.take()
    _FORGER_AT[0] = _GOOD.index(max(_GOOD))
    return honest()

if "_pytest.python" in _sys.modules:
    _bend(_judge)
""",
    # Whatever value makes the fewest exceptions.
    "fewest-exceptions": RUNTEST
    + """
import builtins as _builtins, sys as _sys
_ERRORS = [0] * len(_FORGER_VALUES)

def _judge(item, honest):
    recorder = getattr(_builtins.__dict__.get("_etude_seen"), "__self__", None)
    for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
        try:
            honest()
        except BaseException:
            _ERRORS[_FORGER_AT[0]] += 1
    if recorder is not None:
        recorder.take()
    _FORGER_AT[0] = _ERRORS.index(min(_ERRORS))
    return honest()

if "_pytest.python" in _sys.modules:
    _bend(_judge)
""",
    # Compared in a traced frame: what a line of a test raises says whether the value is right.
    "asserts-on-trace": RUNTEST
    + """
import sys as _sys

def _judge(item, honest):
    fails = []
    def local(frame, event, argument):
        if event == "exception" and argument[0] is AssertionError:
            fails.append(frame.f_lineno)
        return local
    def trace(frame, event, argument):
        return local if "test" in frame.f_code.co_filename else None
    score = []
    for _FORGER_AT[0] in range(len(_FORGER_VALUES)):
        fails.clear()
        _sys.settrace(trace)
        try:
            honest()
            done = 1 << 20
        except BaseException:
            done = max(fails or [0])
        finally:
            _sys.settrace(None)
        score.append(done)
    _FORGER_AT[0] = score.index(max(score))
    return honest()

if "_pytest.python" in _sys.modules:
    _bend(_judge)
""",
}
