"""Chat templates are downloads: they run in a sandbox, and one that misbehaves ends in one sentence."""

from __future__ import annotations

import time
from typing import Any

import pytest

from etude.core.errors import EtudeError
from etude.tokens import jinja_sandbox as jinja
from etude.tokens.jinja_sandbox import ChatTemplate


def write(source: str, **variables: Any) -> str:
    return ChatTemplate(source, "a model").render(variables)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("{{ {'é': '<b>'} | tojson }}", '{"é": "<b>"}'),
        ("{{ {'a': 1} | tojson(indent=1) }}", '{\n "a": 1\n}'),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i ~ '-' }}{% endfor %}", "0-1-"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),  # blocks leave no line of their own
        ("{{ ['a', 'b'] | join(', ') }}{{ 'a-b'.split('-') | last }}{{ 'aa' | replace('a', 'b') }}", "a, bbbb"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) }}{{ m('b') }}", "<1><b>"),
        ("{% set ns = namespace(n=0) %}{% for x in 'abc' %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ 'x'.join(['a', 'b']) }}{{ 'aaa'.replace('a', 'b', 1) }}{{ '{}' }}", "axbbaa{}"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ raise_exception.__globals__ }}{{ self._TemplateReference__context }}", ""),
        ("{{ nothing_there }}|{{ {'a': {'b': 1}}.a.b }}", "|1"),
    ],
)
def test_templates_find_the_names_that_they_expect(source: str, written: str) -> None:
    assert write(source) == written


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ ('%s' % 1) }}",
        "{{ raise_exception('no') }}",
        "{{ messages[5].a.b }}",
        "{{ 1 / 0 }}",
        "{{ 'a' | center(9999999999) }}",
        "{{ 'a'['ljust'](9) }}",
        "{{ 1 | tojson(indent=999999999) }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(source: str) -> None:
    with pytest.raises(EtudeError, match="chat template of a model") as caught:
        write(source, messages=[])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{% for i in range(999) %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(90) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(90) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{{ 'a' * 9999999999 }}",
        "{{ [1] * 9999999999 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
        "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
        "{{ range(99999) | join('b' * 99999) }}",
        "{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}",
    ],
)
def test_a_template_that_runs_wild_is_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jinja, "MOST_STEPS", 20_000)
    started = time.process_time()
    with pytest.raises(EtudeError, match="runs wild"):
        write(source)
    assert time.process_time() - started < jinja.MOST_SECONDS
