"""Attacks by code that shares a process with its tests: what gates try on every JavaScript task.

Each is the files of a submission that solves nothing; none may be accepted. More of the same kind are in
`redteam/grader/javascript_attacks.py`. Knows tasks; runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from etude.forge.gates.attacks.base import Files
from etude.tasks.format.task import Task
from etude.tasks.javascript.parsing import ENDINGS
from etude.tasks.kinds.stubs import stub

# Is loosely equal to much, has every property, can be called, and says of itself what is asked.
ANYTHING: Final = (
    "(function any() { var p = new Proxy(function () {}, { get: function (t, k) { return k === Symbol.toPrimitive ? "
    "function () { return 1; } : k === Symbol.iterator ? function* () { yield p; } : k === 'length' ? 1 : p; }, "
    "apply: function () { return p; }, construct: function () { return p; }, has: function () { return true; } }); "
    "return p; })()"
)
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
# Put behind a file of the workspace as it is.
AT_LOAD: Final[Mapping[str, str]] = {"a bent framework": BENT, "a report that is forged": FORGED}
# What every function that is missing returns, or does.
IN_CALLS: Final[Mapping[str, str]] = {"what equals everything": ANYTHING}


def script_attacks(
    task: Task, at_load: Mapping[str, str] = AT_LOAD, in_calls: Mapping[str, str] = IN_CALLS
) -> dict[str, Files]:
    """All that apply to a task, by name."""
    found: dict[str, Files] = {}
    path = next((path for path in task.solution if path.endswith(ENDINGS)), None)
    if path is not None:
        before = task.workspace.get(path, b"").rstrip()
        for name, code in at_load.items():
            found[name] = {path: before + f"\n;(function () {{ {_LOAD} {code} }}());\n".encode()}
    stubs = {name: stub(task, value) for name, value in in_calls.items()}
    return found | {name: files for name, files in stubs.items() if files}
