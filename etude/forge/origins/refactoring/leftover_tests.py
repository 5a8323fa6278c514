"""Tests that look at the running code for what was left behind: an alias, a shim, a hook, a keyword that is swallowed.

Nobody sees them but the grader; each says in its message what it wants, and wants no more than the instruction tells.
They import what the work leaves and look at that, at what made it and not at what it says of itself; of a renamed
thing also at the names in code, since a module that nothing imports is not there to be looked at. A test that passes
before the work is in no task: whatever is asked goes with something that is missing then. Knows names; no repository.
"""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = '''"""{title}"""

import contextlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import tokenize
import types

PROJECT = {project!r}
CHANGED = {changed!r}


def loaded():
    """The project's modules, those that had to change among them."""
    for name in CHANGED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return {{name: each for name, each in sorted(sys.modules.items()) if f"{{name}}.".startswith(f"{{PROJECT}}.")}}


def has(holder, name):
    """Whether something answers to a name, in whichever way."""
    try:
        getattr(holder, name)
    except AttributeError:
        return False
    return True
'''

_FUNCTION = """

def test_{new}_is_there():
    assert has(importlib.import_module({module!r}), {new!r}), "{module} has no {new}"


def test_no_module_has_{old}():
    found = [name for name, each in loaded().items() if has(each, {old!r})]
    assert found == [], f"{old} is called {new} now, and is still in {{', '.join(found)}}"


def test_nothing_exports_{old}():
    found = [name for name, each in loaded().items() if {old!r} in list(getattr(each, "__all__", ()))]
    assert found == [], f"{old} is called {new} now, and is still exported by {{', '.join(found)}}"
"""

_CODE = '''

def saying(word):
    """Files of the project, but for tests, whose code has this word: as a name, or as a whole string."""
    spec = importlib.util.find_spec(PROJECT)
    folders = [pathlib.Path(each) for each in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))] or [pathlib.Path(spec.origin)]
    own = [file for file in files if not {{"test", "tests"}} & {{*file.parts}} and not file.name.startswith("test_")]
    return [file.name for file in own if word in words(file)]


def words(file):
    with tokenize.open(file) as opened:
        for token in tokenize.generate_tokens(opened.readline):
            if token.type in (tokenize.NAME, tokenize.STRING):
                yield token.string.strip("\\"'")


def test_no_code_says_{old}():
    assert saying({old!r}) == [], f"{old} is called {new} now, and stands in {{', '.join(saying({old!r}))}}"
'''

_OWN_NAME = """

def test_{new}_is_its_own_name():
    named = getattr(importlib.import_module({module!r}){owner}, {new!r}).__name__
    assert named == {new!r}, f"{new} is another name for {{named}}: it is to be defined under its new name"
"""

_METHOD = """

def test_{new}_is_there():
    assert has(importlib.import_module({module!r}).{owner}, {new!r}), "{owner} has no {new}"


def test_the_class_has_no_{old}():
    assert not has(importlib.import_module({module!r}).{owner}, {old!r}), "{owner}.{old} is called {new} now"


def test_no_class_has_{old}():
    classes = {{each for module in loaded().values() for each in vars(module).values() if isinstance(each, type)}}
    found = sorted(each.__qualname__ for each in classes if {old!r} in vars(each))
    assert found == [], f"{old} is called {new} now, and is still in {{', '.join(found)}}"
"""

_OBJECT = """

def test_no_object_answers_to_{old}():
    kind = importlib.import_module({module!r}).{owner}
    assert not has(object.__new__(kind), {old!r}), "objects of {owner} still answer to {old}, which is called {new} now"
"""

_PARAMETER = '''

def refusal(called, *given):
    """What is said when the old keyword is passed."""
    try:
        called(*given, **{{{old!r}: None}})
    except TypeError as error:
        return str(error)
    except Exception as error:
        return f"nothing, but {{error!r}} comes later"
    return "nothing"


def own_parameters(called):
    """As the function's own code has them, whatever its signature says; none where it is no function, or takes any."""
    called = called.__func__ if type(called) is types.MethodType else called
    code = called.__code__ if type(called) is types.FunctionType else None
    if code is None or code.co_flags & inspect.CO_VARKEYWORDS:
        return ()
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
'''

_TAKES = """

def test_{title}_takes_{new}():
    parameters = own_parameters(importlib.import_module({module!r}).{name})
    assert {new!r} in parameters, "{name} is no function with a parameter {new} and without any for all keywords"


def test_{title}_has_no_{old}():
    parameters = own_parameters(importlib.import_module({module!r}).{name})
    assert {old!r} not in parameters, "the parameter {old} of {name} is called {new} now"


def test_{title}_refuses_{old}():
    said = refusal(importlib.import_module({module!r}).{name}{given})
    assert "unexpected keyword" in said, f"{name}({old}=...) has to be a TypeError: it says {{said}}"


def test_{title}_swallows_no_keywords():
    parameters = inspect.signature(importlib.import_module({module!r}).{name}).parameters.values()
    kinds = [each.kind for each in parameters]
    assert inspect.Parameter.VAR_KEYWORD not in kinds, "{name} takes any keyword, {old} too"
"""

_MODULE = '''

def test_the_module_is_at_its_new_place():
    assert importlib.import_module({new!r}).__name__ == {new!r}, "{new} is another module under that name"


def home(thing):
    """The module that it says it is of; where a function's own code was made in another one, that."""
    if type(thing) is types.FunctionType and thing.__globals__["__name__"] != thing.__module__:
        return thing.__globals__["__name__"]
    return thing.__module__


def test_what_it_defines_is_defined_there():
    module = importlib.import_module({new!r})
    found = [name for name in {names!r} if home(getattr(module, name)) != {new!r}]
    assert found == [], f"defined elsewhere than in {new}: {{', '.join(found)}}"


def test_the_old_place_cannot_be_imported():
    loaded()
    try:
        importlib.import_module({old!r})
        found = {old!r}
    except ModuleNotFoundError:
        found = ""
    assert found == "", "{old} is {new} now, and can still be imported from its old place"


def test_its_old_package_does_not_have_it():
    loaded()
    holder = importlib.import_module({parent!r})
    assert not has(holder, {stem!r}), "{old} is {new} now, and {parent} still has {stem}"
'''


def renamed_function(project: str, changed: Sequence[str], module: str, old: str, new: str, *, plain: bool) -> bytes:
    """Of a function or class of a module; `plain` where nothing around it could give it another name of its own."""
    head = _HEAD.format(title=f"{old} is called {new} now.", project=project, changed=tuple(changed))
    text = head + _FUNCTION.format(module=module, old=old, new=new) + _CODE.format(old=old, new=new)
    return (text + (_OWN_NAME.format(module=module, new=new, owner="") if plain else "")).encode()


def renamed_method(
    project: str, changed: Sequence[str], module: str, owner: str, old: str, new: str, *, plain: bool, bare: bool
) -> bytes:
    """Of a method; `bare` where an object of the class can be made without its constructor."""
    head = _HEAD.format(title=f"{owner}.{old} is called {new} now.", project=project, changed=tuple(changed))
    text = head + _METHOD.format(module=module, owner=owner, old=old, new=new) + _CODE.format(old=old, new=new)
    text += _OBJECT.format(module=module, owner=owner, old=old, new=new) if bare else ""
    return (text + (_OWN_NAME.format(module=module, new=new, owner=f".{owner}") if plain else "")).encode()


def renamed_parameter(
    project: str, changed: Sequence[str], functions: Sequence[tuple[str, str, bool]], old: str, new: str
) -> bytes:
    """Of functions as (module, name, whether it is a method and wants an object first)."""
    title = f"The parameter {old} of {functions[0][1]} is called {new} now."
    text = _HEAD.format(title=title, project=project, changed=tuple(changed)) + _PARAMETER.format(old=old)
    for module, name, method in functions:
        given = ", None" if method else ""
        title = name.replace(".", "_").strip("_").lower()
        text += _TAKES.format(module=module, name=name, title=title, given=given, old=old, new=new)
    return text.encode()


def moved_module(project: str, changed: Sequence[str], old: str, new: str, names: Sequence[str]) -> bytes:
    """Of a module, with what it defines by plain `def` and `class`."""
    parent, _, stem = old.rpartition(".")
    head = _HEAD.format(title=f"{old} is {new} now.", project=project, changed=tuple(changed))
    return (head + _MODULE.format(old=old, new=new, names=tuple(names), parent=parent, stem=stem)).encode()
