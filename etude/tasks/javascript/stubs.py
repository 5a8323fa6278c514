"""Answers that only look like one: every function that a solution changes returns the same thing.

Works on text alone.
"""

from __future__ import annotations

from etude.tasks.javascript.functions import functions
from etude.tasks.javascript.parsing import parse

STUBS = ("undefined", "null", "true", "[]")
# Is loosely equal to much, has every property, can be called, and says of itself what is asked.
ANYTHING = (
    "(function any() { var p = new Proxy(function () {}, { get: function (t, k) { return k === Symbol.toPrimitive ? "
    "function () { return 1; } : k === Symbol.iterator ? function* () { yield p; } : k === 'length' ? 1 : p; }, "
    "apply: function () { return p; }, construct: function () { return p; }, has: function () { return true; } }); "
    "return p; })()"
)
# Appended to a file of the tested code: no assertion fails from then on, and no framework hears of one.
BENDING = """
;(function () {
  var nothing = function () {};
  var load = typeof require === 'function' ? require : null;
  var names = ['assert', 'assert/strict', 'node:assert', 'node:assert/strict', 'tape', 'chai'];
  names.forEach(function (name) {
    try {
      var found = load(name);
      Object.keys(found).forEach(function (key) {
        if (typeof found[key] === 'function' && key !== 'Test' && key !== 'expect') { found[key] = nothing; }
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
  Object.is = function () { return true; };
}());
"""


def stubbed(before: bytes, after: bytes, value: str) -> bytes | None:
    """The solution's file with every function that it changes returning `value`; None where it changes none."""
    if parse(after) is None:
        return None
    old = {(each.name, each.node.text) for each in functions(before)}
    changed = [each for each in functions(after) if (each.name, each.node.text) not in old]
    for each in sorted(changed, key=lambda found: -found.body.start_byte):
        body = each.body
        after = after[: body.start_byte] + f"{{ return {value}; }}".encode() + after[body.end_byte :]
    return after if changed else None
