"""JavaScript repositories are installed by npm in a sandbox, and verified without network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from etude.core.errors import EtudeError
from etude.core.policy import Context, Sample, Sampling
from etude.forge.environments.suite_run import run_suite
from etude.forge.install.checkout import open_repo
from etude.forge.install.javascript.installer import add_environment
from etude.forge.install.javascript.project_facts import is_code, is_test, manifest, read_project
from etude.forge.install.rules.scripted_policy import StepPolicy, Steps, run

from .conftest import FILES, PACKAGE, Bench, Laid, Shop, lay_out


def test_a_repository_with_tests_of_node_is_installed_and_verified(shop: Shop) -> None:
    environment = shop.environment
    assert environment.suite.kind == "node" and environment.suite.options == ("node",)
    assert environment.suite.folders == ("test/cart.test.js", "test/money.test.js", "test/words.test.js")
    assert len(environment.outcomes) == 21
    assert set(environment.outcomes.values()) == {"passed"}
    assert "test/words.test.js::slug > joins words" in environment.outcomes
    assert "test/words.test.js::initials > of ada lovelace" in environment.outcomes


def test_installing_again_only_reads(bench: Bench, shop: Shop) -> None:
    _, again = bench.install(shop.repo.tree)
    assert again.cached and again.digest == shop.environment.digest


def test_a_run_tells_which_functions_each_test_reached(bench: Bench, shop: Shop) -> None:
    layer = bench.store.add(shop.repo.tree, shows=())
    traced = bench.run(run_suite(bench.host, shop.environment, layer, trace=("",)))
    reached = traced.traces["test/words.test.js::slug > joins words"]
    text = FILES["lib/words.js"]
    start = text.index("function slug")
    assert f"lib/words.js:{start}:{text.index('};') + 1}" in reached
    assert not any(each.startswith("lib/cart.js") for each in reached)


def test_a_run_tells_what_starting_each_file_takes_and_reads_no_file_that_is_not_asked_for(
    bench: Bench, shop: Shop
) -> None:
    layer = bench.store.add(shop.repo.tree, shows=())
    test = "test/words.test.js::slug > joins words"
    some = bench.run(run_suite(bench.host, shop.environment, layer, tests=[test]))
    assert some.complete and some.outcomes == {test: "passed"}
    assert some.took.keys() == {test, "test/words.test.js"} and some.took["test/words.test.js"] > some.took[test]


def test_who_needs_the_repository_itself_finds_the_workspace(bench: Bench, shop: Shop, tmp_path: Path) -> None:
    package = {"name": "shop", "main": "index.js"}
    build = {"shop/package.json": json.dumps(package), "shop/index.js": "exports.old = 1;", "user/index.js": ""}
    lay_out(tmp_path / "home/agent/build/node_modules", build | {"user/node_modules/shop/index.js": ""})
    layer = add_environment(tmp_path, read_project(shop.repo.tree), shop.repo.tree, bench.host)

    async def look() -> bytes:
        workspace = bench.store.add(shop.repo.tree, shows=())
        async with await bench.host.start([layer, workspace]) as sandbox:
            asked = "console.log(require.resolve('shop'), typeof require('shop').Cart)"
            return (await sandbox.run(["/opt/env/bin/node", "-e", asked], cwd="/opt/env/node_modules/user")).stdout

    assert bench.run(look()) == b"/workspace/index.js function\n"


def test_a_policy_installs_in_place_of_the_rules_and_hears_what_came_of_its_tries(bench: Bench, laid: Laid) -> None:
    told: list[str] = []

    class Agent(StepPolicy):
        async def sample(self, context: Context, sampling: Sampling) -> Sample:
            told.append(context.messages[-1].text)
            return await super().sample(context, sampling)

    def steps(number: int) -> Steps:
        if number > 1:
            said = yield [run("ls package.json && npm install --no-audit --no-fund")]
            assert said[0].startswith("package.json")
        return "done"

    # Other files than those that the rules have installed: a known result would only be read.
    files = FILES | {"README.md": "installed by a policy"}
    _, installed = bench.install(laid(files), agents=lambda stage, number: Agent(steps(number)))
    assert installed.ok, installed.reason
    assert installed.passed == 21 and installed.tries == ("npm left no lock that can be read",)
    assert "node --test test/cart.test.js" in told[0] and "earlier tries" not in told[0]
    assert "npm left no lock that can be read" in told[1]


def test_too_few_tests_are_refused_with_the_reason(bench: Bench, laid: Laid) -> None:
    files = {path: text for path, text in FILES.items() if path not in ("test/words.test.js", "test/cart.test.js")}
    _, installed = bench.install(laid(files))
    assert not installed.ok and installed.reason.startswith("only 7 tests pass, and 10 are needed")


@pytest.mark.parametrize(
    ("package", "test", "why"),
    [
        ('{"devDependencies": {"jest": "*"}}', "test('a', () => {});", "its tests are written for jest"),
        ("{}", "console.log(1);", "its tests are written for none of node:test, tape and mocha"),
        ("[]", "", "its package.json cannot be read"),
        ('{"name": "..", "devDependencies": ["x"], "scripts": 3}', "1;", "its tests are written for none of"),
    ],
)
def test_what_cannot_be_run_is_said(bench: Bench, laid: Laid, package: str, test: str, why: str) -> None:
    _, installed = bench.install(laid({"package.json": package, "index.js": "", "test/a.js": test}))
    assert not installed.ok and installed.reason.startswith(why)


def test_a_repository_without_tests_is_refused(bench: Bench, laid: Laid) -> None:
    _, installed = bench.install(laid({"package.json": PACKAGE, "index.js": ""}))
    assert installed.reason == "it holds no tests"


def test_of_what_is_named_for_developing_only_what_tests_take_is_installed(laid: Laid) -> None:
    package = {
        "dependencies": {"a": "^1"},
        "devDependencies": {"tape": "^5", "eslint": "^8", "@x/y": "^2"},
        "scripts": {"test": "tape test/*.js", "postinstall": "rm -rf /"},
    }
    test = "const test = require('tape');\nconst y = require('@x/y/deep');\ntest('a', (t) => t.end());\n"
    project = read_project(laid({"package.json": json.dumps(package), "test/a.js": test}))
    assert project.framework == "tape"
    wanted = manifest(project, "taken")
    assert wanted["devDependencies"] == {"tape": "^5", "@x/y": "^2"} and wanted["dependencies"] == {"a": "^1"}
    assert "scripts" not in wanted
    assert manifest(project, "loose")["devDependencies"] == {"tape": "*", "@x/y": "*"}
    assert set(manifest(project, "all")["devDependencies"]) == {"tape", "eslint", "@x/y"}


def test_mocha_is_told_what_the_repository_tells_it(laid: Laid) -> None:
    package = {"devDependencies": {"mocha": "*"}, "scripts": {"test": "mocha -r ./test/setup --timeout=5000 --watch"}}
    files = {"package.json": json.dumps(package), "test/a.js": "describe('a', () => { it('b', () => {}); });\n"}
    project = read_project(laid(files))
    assert project.framework == "mocha" and project.tests == ("test/a.js",)
    assert project.options == ("--require", "./test/setup", "--timeout", "5000")


def test_code_tests_and_what_was_built_are_told_apart() -> None:
    assert is_code("lib/a.js") and is_code("index.mjs") and is_code("src/deep/b.cjs")
    for path in ("dist/a.js", "lib/a.min.js", "test/a.js", "lib/a.test.js", "rollup.config.js", "docs/a.js", "a.py"):
        assert not is_code(path), path
    assert is_test("test.js") and is_test("a/__tests__/b.js") and is_test("a-test.js") and not is_test("lib/contest.js")


@pytest.mark.parametrize("spec", ["npm:", "npm:../x", "npm:-x", "npm:a@b/../c", "npm:a@latest;rm"])
def test_names_that_are_no_packages_of_npm_are_refused(bench: Bench, spec: str) -> None:
    with pytest.raises(EtudeError, match="is no package of npm's index"):
        open_repo(spec, bench.store.root / "repositories")
