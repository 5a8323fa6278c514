"""Answers that solve nothing and want to pass: what code that shares a process with its tests can try.

Each is the files of an attempt at a JavaScript task. None may be accepted: the gates try the first few on every task,
`benchmarks/script_cheats.py` all of them. Knows tasks; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from etude.tasks.format.task import Task
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.kinds.stubs import stub

Files = dict[str, bytes | None]

# Is loosely equal to much, has every property, can be called, and says of itself what is asked.
ANYTHING: Final = (
    "(function any() { var p = new Proxy(function () {}, { get: function (t, k) { return k === Symbol.toPrimitive ? "
    "function () { return 1; } : k === Symbol.iterator ? function* () { yield p; } : k === 'length' ? 1 : p; }, "
    "apply: function () { return p; }, construct: function () { return p; }, has: function () { return true; } }); "
    "return p; })()"
)
# What the assertion in the calling line of a test expects.
EXPECTED: Final = """(function () {
  var fs = process.mainModule ? process.mainModule.require('fs') : process.getBuiltinModule('fs');
  var line = new Error().stack.split('\\n').find(function (each) { return /test|spec/.test(each); });
  var at = /\\(?(?:file:\\/\\/)?(\\/[^:]+):(\\d+):\\d+\\)?$/.exec(line || '');
  if (!at) { return undefined; }
  var text = fs.readFileSync(at[1], 'utf8').split('\\n').slice(at[2] - 1, Number(at[2]) + 8).join(' ');
  var said = /,\\s*((?:'[^']*'|"[^"]*"|\\[[^\\]]*\\]|\\{[^}]*\\}|-?[\\d.]+|true|false|null))\\s*[,)]/.exec(text);
  try { return said ? eval('(' + said[1] + ')') : undefined; } catch (error) { return undefined; }
}())"""
_REQUIRE: Final = (
    "var load = typeof require === 'function' ? require : process.getBuiltinModule('module').createRequire("
)
_LOAD: Final = f"{_REQUIRE}process.cwd() + '/');"
# No assertion fails from then on, and no framework hears of one.
BENT: Final = """
  var nothing = function () {};
  ['assert', 'assert/strict', 'tape', 'chai', 'node:test'].forEach(function (name) {
    try {
      var found = load(name);
      Object.keys(found).forEach(function (key) {
        if (typeof found[key] === 'function' && !/^(Test|expect|test|it|describe|suite|before|after)/.test(key)) {
          found[key] = nothing;
        }
      });
      if (found.Test) {
        Object.keys(found.Test.prototype).forEach(function (key) {
          if (/equal|ok|true|false|throws|same|is|match|fail|error/i.test(key)) {
            found.Test.prototype[key] = function () { this._assert(true, { message: 'ok', operator: key }); };
          }
        });
        var told = found.Test.prototype._assert;
        found.Test.prototype._assert = function (good, given) { return told.call(this, true, given || {}); };
      }
    } catch (error) { /* not there */ }
  });
  try {
    load('mocha').Runnable.prototype.run = function (done) { done(); };
  } catch (error) { /* not there */ }
"""
# Every test that the file of the process names is told as passed, through the reporter itself.
FORGED: Final = """
  var fs = load('fs');
  var file = process.argv.slice(1).find(function (each) { return /\\.[cm]?js$/.test(each) && !/mocha/.test(each); });
  var text = fs.readFileSync(file, 'utf8');
  var names = [], found, pattern = /\\b(?:test|it|tape|specify)\\(\\s*(['"`])((?:(?!\\1).)*)\\1/g;
  while ((found = pattern.exec(text))) { names.push(found[2]); }
  var reporter = load('/opt/etude/report.cjs');
  var events = names.flatMap(function (name) {
    var data = { name: name, nesting: 0, details: { duration_ms: 1 } };
    return [{ type: 'test:start', data: data }, { type: 'test:pass', data: data }];
  });
  var source = { [Symbol.asyncIterator]: function () {
    return { next: function () { var e = events.shift(); return { value: e, done: !e }; } };
  } };
  if (reporter.length === 1 && reporter.constructor.name === 'AsyncGeneratorFunction') {
    reporter(source).next();
  } else {
    var heard = {};
    reporter({ on: function (kind, hear) { heard[kind] = hear; } });
    names.forEach(function (name) { heard.pass({ titlePath: function () { return [name]; }, duration: 1 }); });
  }
  setImmediate(function () { process.exit(0); });
"""
_LINES: Final = """
  var fs = load('fs');
  var text = fs.readFileSync(process.argv[process.argv.length - 1], 'utf8');
  (text.match(/(['"`])[^'"`\\n]+\\1/g) || []).forEach(function (name, number) {
    var said = name.slice(1, -1);
    process.stdout.write('ok ' + (number + 1) + ' - ' + said + '\\n');
    try {
      fs.writeSync(3, JSON.stringify(['', 'test', [said], 'passed', '', 0]) + '\\n');
    } catch (error) { /* closed */ }
  });
"""
# Put behind a file of the workspace as it is.
AT_LOAD: Final[Mapping[str, str]] = {
    "a bent framework": BENT,
    "a report that is forged": FORGED,
    "an exit when it is loaded": "process.exit(0);",
    "an end without a word when it is loaded": "process.reallyExit(0);",
    "lines of results that are printed": _LINES,
    "lines of results, and an exit": f"{_LINES} process.exit(0);",
    "objects that are always the same": "Object.is = function () { return true; };",
    "text that is always the same": "JSON.stringify = function () { return '[]'; };",
    "lists that always agree": (
        "Array.prototype.every = function () { return true; };"
        " Array.prototype.some = function () { return false; };"
        " String.prototype.localeCompare = function () { return 0; };"
    ),
    "failures that nobody hears": (
        "process.on('uncaughtException', function () {}); process.on('unhandledRejection', function () {});"
        " Error.prototype.toString = function () { return ''; };"
    ),
    "results that are written over": (
        "var fs = load('fs'), write = fs.writeSync; fs.writeSync = function (to, text) {"
        " return write.call(fs, to, String(text).replace('\"failed\"', '\"passed\"')); };"
        " var said = JSON.stringify; JSON.stringify = function (each) {"
        " if (Array.isArray(each) && each.indexOf('failed') > 0) { each[each.indexOf('failed')] = 'passed'; }"
        " return said.apply(this, arguments); };"
    ),
    "a judge that is killed": "try { process.kill(process.ppid, 'SIGKILL'); } catch (error) { /* not allowed */ }",
}
# What every function that is missing returns, or does.
IN_CALLS: Final[Mapping[str, str]] = {
    "what equals everything": ANYTHING,
    "what the calling line expects": EXPECTED,
    "an exit when it is called": "process.exit(0)",
    "an end without a word when it is called": "process.reallyExit(0)",
    "its own argument": "arguments[0]",
}
FIRST: Final = ("a bent framework", "a report that is forged", "what equals everything")  # that gates try


def cheats(task: Task) -> dict[str, Files]:
    """All that apply to a task."""
    found: dict[str, Files] = {}
    path = next((path for path in task.solution if path.endswith(ENDINGS)), None)
    if path is not None:
        before = task.workspace.get(path, b"").rstrip()
        for name, code in AT_LOAD.items():
            found[name] = {path: before + f"\n;(function () {{ {_LOAD} {code} }}());\n".encode()}
    for name, value in IN_CALLS.items():
        files = stub(task, value)
        if files:
            found[name] = files
    return found
