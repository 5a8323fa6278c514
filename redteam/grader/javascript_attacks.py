"""Attacks on the grader of JavaScript tasks, beside the three that the gates try on every task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from etude.forge.gates.attacks import javascript
from etude.forge.gates.attacks.base import Files
from etude.tasks.format.task import Task
from etude.tasks.kinds.stubs import stub

TOLD_APART: Final = "asserts that tell a negated condition"
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
# What is missing passes every condition but those that somebody has negated, and throws wherever that is waited for: a
# changed test of this kind is known by its first sign.
_MISSED: Final = f"(globalThis.missed = true, {javascript.ANYTHING})"
_NEGATED: Final = """
;(function () {
  var load = typeof require === 'function' ? require : process.getBuiltinModule('module').createRequire(
    process.cwd() + '/');
  var assert = load('assert'), fs = load('fs');
  var line = function () {
    var at = new Error().stack.split('\\n').find(function (each) { return /\\/(test|spec)/.test(each); });
    var where = /\\(?(?:file:\\/\\/)?(\\/[^:]+):(\\d+):\\d+\\)?$/.exec(at || '');
    return where ? fs.readFileSync(where[1], 'utf8').split('\\n')[where[2] - 1] : '';
  };
  [assert, assert.strict].forEach(function (each) {
    var ok = each.ok, throws = each.throws;
    each.ok = function () {
      if (!globalThis.missed) { return ok.apply(each, arguments); }
      globalThis.missed = false;
      if (/\\.ok\\(!\\(/.test(line())) { throw new assert.AssertionError({ message: 'no' }); }
    };
    each.throws = function (run) {
      try { return throws.apply(each, arguments); } catch (error) {
        if (!globalThis.missed || String(run) === 'function () {}') { throw error; }
      } finally { globalThis.missed = false; }
    };
  });
}());
"""
# What a test without its answers tells is told in its place: of all that the file of tests still says, a value for each
# assertion; what its own call was given; or what lies in a file of answers.
_TOLD: Final = """
  var fs = load('fs'), tell = globalThis._etude_seen;
  var file = process.argv.slice(1).find(function (each) { return /\\.[cm]?js$/.test(each) && !/mocha/.test(each); });
  var text = fs.readFileSync(file, 'utf8');
  var words = (text.match(/(['"`])[^'"`\\n]*\\1|\\b\\d+\\b/g) || []).map(function (each) {
    return /^\\d/.test(each) ? Number(each) : each.slice(1, -1);
  });
"""
_FROM_A_FILE: Final = """
  var search = function (folder, depth) {
    try {
      fs.readdirSync(folder, { withFileTypes: true }).forEach(function (each) {
        var path = folder + '/' + each.name;
        if (each.isDirectory() && depth && !/^\\/(proc|sys|usr|dev)/.test(path)) { search(path, depth - 1); }
        if (each.name === 'answers.json') {
          var all = JSON.parse(fs.readFileSync(path, 'utf8')).records;
          Object.keys(all).forEach(function (test) { all[test].forEach(function (row) { known[row[0]] = row[1]; }); });
        }
      });
    } catch (error) { /* not allowed */ }
  };
  var known = {};
  search('', 6);
"""
# Put behind a file of the workspace as it is.
AT_LOAD: Final[Mapping[str, str]] = {
    **javascript.AT_LOAD,
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
    "values that the tests still mention": (
        f"{_TOLD} if (tell) {{ globalThis._etude_seen = function (site) {{"
        " tell(site, words[site % words.length]); }; }"
    ),
    "values that are what was given, or true": (
        f"{_TOLD} if (tell) {{ globalThis._etude_seen = function (site, value) {{"
        " tell(site, value === undefined ? true : value); }; globalThis._etude_throws = function (site) {"
        " tell(site, ['Error', 'TypeError', 'RangeError', 'SyntaxError'], text); }; }"
    ),
    "values of a file of answers": (
        f"{_TOLD} {_FROM_A_FILE} if (tell) {{ globalThis._etude_seen = function (site, value) {{"
        " tell(site, site in known ? known[site] : value); }; }"
    ),
    "an assertion that is told twice": (
        f"{_TOLD} if (tell) {{ globalThis._etude_seen = function (site, value) {{"
        " tell(site, value); words.forEach(function (word) { tell(site, word); }); }; }"
    ),
    "a parent that is killed": "try { process.kill(process.ppid, 'SIGKILL'); } catch (error) { /* not allowed */ }",
}
# What every function that is missing returns, or does.
IN_CALLS: Final[Mapping[str, str]] = {
    **javascript.IN_CALLS,
    "what the calling line expects": EXPECTED,
    "an exit when it is called": "process.exit(0)",
    "an end without a word when it is called": "process.reallyExit(0)",
    "its own argument": "arguments[0]",
}


def javascript_attacks(task: Task) -> dict[str, Files]:
    """All that apply to a task, by name."""
    found = javascript.script_attacks(task, AT_LOAD, IN_CALLS)
    told = {path: (data or b"") + _NEGATED.encode() for path, data in stub(task, _MISSED).items()}
    return found | ({TOLD_APART: told} if told else {})
