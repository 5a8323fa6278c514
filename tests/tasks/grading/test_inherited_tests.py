"""Where inherited tests are written."""

from __future__ import annotations

from etude.tasks.grading.inherited_tests import InheritedTests

METHOD = "    def test_x(self):\n        pass\n"
SOURCES = {
    "tests/test_a.py": f"class Test:\n{METHOD}",
    "tests/test_b.py": f"class Test:\n{METHOD}",
    "tests/test_c.py": "from tests.test_b import Test as TestB\nfrom .test_a import Test as TestA\n\n\n"
    "class TestB(TestB):\n    pass\n\n\nclass TestA(object, TestA):\n    pass\n",
    "tests/test_d.py": f"import base\n\n\nclass Own:\n{METHOD}\n\nclass Test(base.Test, Own):\n    pass\n",
}


def test_a_base_that_is_called_like_its_heir_is_the_imported_one() -> None:
    found = InheritedTests(SOURCES)
    assert found.home("tests/test_c.py", "TestB.test_x") == ("tests/test_b.py", "Test.test_x")
    assert found.home("tests/test_c.py", "TestA.test_x") == ("tests/test_a.py", "Test.test_x")


def test_what_comes_from_elsewhere_is_looked_for_everywhere_and_may_have_no_home() -> None:
    found = InheritedTests(SOURCES)
    assert found.home("tests/test_d.py", "Test.test_x") == ("tests/test_a.py", "Test.test_x")
    assert found.home("tests/test_d.py", "Test.test_y") == ("tests/test_d.py", "Test.test_y")
    assert found.home("tests/test_a.py", "Test.test_x") == ("tests/test_a.py", "Test.test_x")


def test_a_class_or_a_function_that_is_only_imported_is_written_where_it_comes_from() -> None:
    sources = {
        "tests/deep/test_a.py": "from tests.test_a import Test, test_y\n\n\nclass TestOwn:\n    pass\n",
        "tests/test_a.py": f"class Test:\n{METHOD}\n\ndef test_y():\n    pass\n",
        "tests/test_b.py": f"class Test:\n{METHOD}",
    }
    found = InheritedTests(sources)
    assert found.home("tests/deep/test_a.py", "Test.test_x") == ("tests/test_a.py", "Test.test_x")
    assert found.home("tests/deep/test_a.py", "test_y") == ("tests/test_a.py", "test_y")
    assert found.home("tests/deep/test_a.py", "TestOwn.test_x") == ("tests/deep/test_a.py", "TestOwn.test_x")
