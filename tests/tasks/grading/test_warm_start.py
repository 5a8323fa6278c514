"""What the process that warm graders are forked from does beforehand."""

from __future__ import annotations

import subprocess
import sys

from etude.tasks.sandbox_side import interpreter_warmup

# In an interpreter of its own: preparing takes our modules away from the process that does it.
PREPARED = """
import sys
from etude.tasks.sandbox_side import grade_process
grade_process.prepare()
assert not [name for name in sys.modules if name.partition(".")[0] == "etude"], "modules of ours"
assert not vars(sys.modules["__main__"]).get("grade_process"), "our main program"
assert set(sys.path_importer_cache) == set(sys.path), (sys.path_importer_cache, sys.path)
for name in ("etude", "etude.tasks"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(f"{name} can be imported")
import decimal, unittest  # what tests need is still there
print("prepared")
"""


def test_a_prepared_process_has_forgotten_us_and_knows_only_the_standard_library() -> None:
    done = subprocess.run([sys.executable, "-S", "-c", PREPARED], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("prepared\n", "")


def test_a_warm_up_leaves_no_module_and_no_finder() -> None:
    before = list(sys.meta_path), set(sys.modules)
    interpreter_warmup.warm_up()
    assert (list(sys.meta_path), set(sys.modules)) == before
