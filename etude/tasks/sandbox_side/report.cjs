'use strict';

// Loaded before a test file, and as the reporter of its framework: tells descriptor 3 what became of each test.
//
//     descriptor 0   {"framework", "token", "trace", "recorded"}
//     descriptor 3   a JSON line each: [token, kind, ...]
//         "test", path of names, status, what a failing one said, seconds
//         "reached", path of names ([] is what loading ran), functions as "file:start:end"
//         "seen", number of the test that runs, number of the assertion, values: of tests without their answers
//         "end", exit code
//
// Shares its process with tests and tested code, so nothing that it says is believed by itself: see
// tasks/grading/javascript_plan.py and tasks/grading/withheld/.

const fs = require('node:fs');
const { performance } = require('node:perf_hooks');
const { isMainThread } = require('node:worker_threads');
const { createHash } = require('node:crypto');
const { types } = require('node:util');

const write = fs.writeSync;
const stringify = JSON.stringify;
const now = performance.now.bind(performance);
const root = `file://${process.cwd()}/`;
const LONGEST = 2000;

let settings = null;
if (isMainThread) {
	try {
		settings = JSON.parse(fs.readFileSync(0, 'utf8'));
	} catch {
		// A process that a test has forked, with our options: it has nothing to tell.
	}
	process.execArgv.length = 0;
}

function tell(...line) {
	write(3, `${stringify([settings.token, ...line])}\n`);
}

const said = (error) => String((error && (error.message || error)) || '').slice(0, LONGEST);

// Which functions ran since it was last asked.

let session = null;

function watch() {
	session = new (require('node:inspector').Session)();
	session.connect();
	session.post('Profiler.enable');
	session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false });
}

function reached() {
	const found = [];
	session.post('Profiler.takePreciseCoverage', (error, answer) => {
		for (const script of error ? [] : answer.result) {
			if (!script.url.startsWith(root) || script.url.includes('/node_modules/')) continue;
			const path = decodeURIComponent(script.url.slice(root.length));
			for (const { functionName, ranges: [range] } of script.functions) {
				const whole = !functionName && !range.startOffset; // the file itself
				if (range.count && !whole) found.push(`${path}:${range.startOffset}:${range.endOffset}`);
			}
		}
	});
	return found;
}

let loaded = false;

function begins() {
	if (session && !loaded) tell('reached', [], reached());
	loaded = true;
}

function ends(path) {
	if (session) tell('reached', path, reached());
}

// What tests without their answers call: the value that the tested code gave is told, and the test goes on. Values that
// are strictly equal are spelled alike; what has no plain form is "other".

const LONGEST_VALUE = 16000; // characters; of a longer one a digest is told
const LONGEST_FILE = 1000000; // of all values of a file: what is missing never passes
const DEEPEST = 60;
const nameOf = (kind) => (typeof kind === 'function' && typeof kind.name === 'string' ? kind.name : '?');

function encode(value, around) {
	if (value === null || typeof value === 'boolean' || typeof value === 'string') return value;
	if (value === undefined) return ['undefined'];
	if (typeof value === 'number') {
		if (Object.is(value, -0)) return ['num', '-0'];
		return Number.isFinite(value) ? value : ['num', String(value)];
	}
	if (typeof value === 'bigint') return ['int', value.toString(16)];
	if (typeof value !== 'object' || around.length > DEEPEST || around.includes(value)) return ['other', typeof value];
	const within = [...around, value];
	const inOrder = (made) => made.map((each) => [stringify(each), each]).sort((a, b) => (a[0] < b[0] ? -1 : 1)).map((each) => each[1]);
	const pairs = (keys) => keys.sort().map((key) => [key, encode(value[key], within)]);
	const kind = Object.getPrototypeOf(value);
	if (Object.getOwnPropertySymbols(value).length) return ['other', 'symbols'];
	if (Array.isArray(value)) {
		// Holes and further properties are no plain list.
		if (Object.keys(value).length !== value.length) return ['other', 'array'];
		const items = value.map((each) => encode(each, within));
		return kind === Array.prototype ? ['list', items] : ['fields', nameOf(value.constructor), [['', ['list', items]]]];
	}
	if (types.isDate(value)) return ['when', value.getTime()];
	if (types.isRegExp(value)) return ['pattern', value.source, value.flags];
	if (types.isMap(value)) return ['map', inOrder([...value].map(([key, each]) => [encode(key, within), encode(each, within)]))];
	if (types.isSet(value)) return ['set', inOrder([...value].map((each) => encode(each, within)))];
	if (types.isUint8Array(value)) return ['bytes', Buffer.from(value).toString('hex')];
	if (ArrayBuffer.isView(value) && !types.isDataView(value)) return ['fields', nameOf(value.constructor), [['', encode([...value], within)]]];
	if (types.isNativeError(value)) {
		const own = Object.keys(value).filter((key) => key !== 'stack');
		return ['fields', String(value.name), [['message', String(value.message)], ...pairs(own)]];
	}
	if (types.isPromise(value) || types.isBoxedPrimitive(value) || types.isWeakMap(value) || types.isWeakSet(value)) return ['other', nameOf(value.constructor)];
	if (kind === Object.prototype || kind === null) return ['dict', pairs(Object.keys(value))];
	return ['fields', nameOf(value.constructor), pairs(Object.keys(value))];
}

let running = -1;
let told = 0;

function seen(site, ...values) {
	const made = values.map((value) => {
		try {
			const found = encode(value, []);
			const text = stringify(found);
			return text.length > LONGEST_VALUE ? ['big', createHash('sha256').update(text).digest('hex'), text.length] : found;
		} catch {
			return ['other', 'unreadable']; // a property of the agent's that throws
		}
	});
	told += stringify(made).length;
	if (told <= LONGEST_FILE) tell('seen', running, site, ...made);
}

function caught(site, error) {
	const names = [];
	for (let kind = error; kind && typeof kind === 'object' && names.length < 9; kind = Object.getPrototypeOf(kind)) {
		if (Object.hasOwn(kind, 'constructor')) names.push(nameOf(kind.constructor));
		if (Object.hasOwn(kind, 'name') && typeof kind.name === 'string') names.push(kind.name);
	}
	seen(site, [...new Set(names)], String(error).slice(0, LONGEST));
}

function record() {
	Object.assign(globalThis, {
		_etude_seen: seen,
		_etude_begins(number) {
			running = number;
		},
		_etude_counted(who, given) {
			who.ok(true);
			return given;
		},
		_etude_throws(site, run) {
			try {
				run();
			} catch (error) {
				return caught(site, error);
			}
			return seen(site, 'nothing', '');
		},
		async _etude_rejects(site, given) {
			try {
				await (typeof given === 'function' ? given() : given);
			} catch (error) {
				return caught(site, error);
			}
			return seen(site, 'nothing', '');
		},
	});
}

// The frameworks

function hearTape() {
	const tape = require('node:module').createRequire(`${process.cwd()}/`)('tape');
	const run = tape.Test.prototype.run;
	tape.Test.prototype.run = function (...given) {
		const body = this._cb;
		if (typeof body === 'function') {
			this._cb = function (t) { // one test that throws ends itself, and not all that come after it
				try {
					return body.call(this, t);
				} catch (error) {
					t.error(error);
					return t.end();
				}
			};
		}
		return run.apply(this, given);
	};
	const tests = new Map();
	tape.createStream({ objectMode: true }).on('data', (row) => {
		if (row.type === 'test') {
			const parent = tests.get(row.parent);
			if (parent) parent.parts += 1;
			const path = [...(parent ? parent.path : []), row.name];
			tests.set(row.id, { path, parts: 0, good: 0, bad: 0, skipped: row.skip || row.todo, text: '', since: now() });
			begins();
		} else if (row.type === 'assert') {
			const test = tests.get(row.test);
			if (row.skip || row.todo) return;
			test[row.ok ? 'good' : 'bad'] += 1;
			if (!row.ok && !test.text) test.text = said(row.error) || String(row.name);
		} else if (row.type === 'end') {
			const test = tests.get(row.test);
			ends(test.path);
			if (test.parts && !test.good && !test.bad) return;
			const idle = test.skipped || !(test.good || test.bad);
			tell('test', test.path, test.bad ? 'failed' : idle ? 'skipped' : 'passed', test.text, (now() - test.since) / 1000);
		}
	});
}

async function* hearNode(source) {
	const open = [];
	for await (const { type, data } of source) {
		if (type === 'test:start') {
			open.length = data.nesting;
			if (data.nesting) open[data.nesting - 1].parts += 1;
			open.push({ name: data.name, parts: 0 });
		} else if (type === 'test:pass' || type === 'test:fail') {
			const { parts } = open[data.nesting];
			const path = open.slice(0, data.nesting + 1).map((each) => each.name);
			if (!parts && data.details.type !== 'suite') {
				const idle = data.skip !== undefined || data.todo !== undefined;
				const error = data.details.error;
				const status = idle ? 'skipped' : type === 'test:pass' ? 'passed' : 'failed';
				tell('test', path, status, said(error && (error.cause || error)), data.details.duration_ms / 1000);
			}
		}
	}
	yield '';
}

function hearMocha(runner) {
	const tell_of = (status) => (test, error) => {
		if (test.type === 'hook') return;
		ends(test.titlePath());
		tell('test', test.titlePath(), status, said(error), (test.duration || 0) / 1000);
	};
	runner.on('start', begins);
	runner.on('pass', tell_of('passed'));
	runner.on('fail', tell_of('failed'));
	runner.on('pending', tell_of('skipped'));
}

if (settings) {
	process.on('exit', (code) => tell('end', code)); // before any framework's own, which may end the process
	if (settings.recorded) record();
	if (settings.trace) watch();
	if (settings.framework === 'tape') hearTape();
	if (settings.framework === 'node' && settings.trace) {
		const { beforeEach, afterEach } = require('node:test');
		beforeEach(begins);
		afterEach((t) => ends(t.fullName.split(' > ')));
	}
	module.exports = settings.framework === 'mocha' ? hearMocha : hearNode;
}
