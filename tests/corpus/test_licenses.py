import importlib.metadata

import pytest

from etude.corpus.licenses import Licenses, is_license_file, of_expression, of_header, of_text, without_header

MIT = "Copyright (c) 2024\n\nPermission is hereby granted, free of\ncharge, to any person obtaining a copy"
GPL = "                    GNU GENERAL PUBLIC\n   LICENSE\n  Version 3, 29 June 2007"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (MIT, "permissive"),
        (GPL, "copyleft"),
        ("Redistribution and use in source and binary forms, with or without", "permissive"),
        ("Apache License\nVersion 2.0", "permissive"),
        ("Mozilla Public License Version 2.0", "copyleft"),
        ("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2 ... the GNU General Public License (GPL)", "permissive"),
        ("All rights reserved. Do not copy.", "unknown"),
        ("", "unknown"),
    ],
)
def test_licence_texts_are_told_by_their_words(text, kind):
    assert of_text(text) == kind


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("MIT", "permissive"),
        ("Apache-2.0 WITH LLVM-exception", "permissive"),
        ("GPL-2.0-or-later", "copyleft"),
        ("MIT OR GPL-3.0-only", "permissive"),
        ("MIT AND LGPL-2.1", "copyleft"),
        ("(MIT OR GPL-3.0) AND BSD-3-Clause", "permissive"),
        ("MIT AND LicenseRef-Proprietary", "unknown"),
        ("MIT OR LicenseRef-Proprietary AND GPL-2.0", "permissive"),
        ("(MIT", "unknown"),
        ("MIT)", "unknown"),
        ("", "unknown"),
        ("(" * 150, "unknown"),
        ("MIT OR " * 1000 + "MIT", "unknown"),
    ],
)
def test_spdx_expressions_follow_their_logic(expression, kind):
    assert of_expression(expression) == kind


def test_the_header_of_a_file_speaks_for_it():
    assert of_header("#!/usr/bin/env python\n# SPDX-License-Identifier: MPL-2.0\nimport os\n") == "copyleft"
    assert of_header("/*\n * This is free software under the GNU General\n * Public License\n */\nint x;") == "copyleft"
    assert of_header("// Apache License\n") == "permissive"
    assert of_header('text = "GNU General Public License"\n# GNU General Public License\n') == "unknown"
    assert of_header("") == "unknown"


def test_a_licence_header_can_be_taken_away():
    assert without_header("# Copyright 2024\n# All rights\n\nx = 1\n# end\n") == "x = 1\n# end\n"
    assert without_header("# What this file is\nx = 1\n") == "# What this file is\nx = 1\n"


def test_the_nearest_licence_file_upward_wins():
    licenses = Licenses()
    licenses.add("LICENSE", MIT)
    licenses.add("vendor/gpl/COPYING", GPL)
    licenses.add("vendor/odd/LICENSE.md", "Ask first.")
    assert licenses.of("a.py", "") == "permissive"
    assert licenses.of("vendor/x.py", "") == "permissive"
    assert licenses.of("vendor/gpl/deep/er/x.py", "") == "copyleft"
    assert licenses.of("vendor/odd/x.py", "") == "unknown"
    assert licenses.of("vendor/gpl/mit.py", "# SPDX-License-Identifier: MIT\n") == "permissive"


def test_of_licence_files_side_by_side_the_strictest_known_counts():
    licenses = Licenses()
    licenses.add("a/LICENSE", "Ask first.")
    licenses.add("a/LICENSE-MIT", MIT)
    licenses.add("b/LICENSE-MIT", MIT)
    licenses.add("b/LICENSE-GPL", GPL)
    assert licenses.of("a/x.py", "") == "permissive"
    assert licenses.of("b/x.py", "") == "copyleft"


def test_installed_distributions_are_told_by_their_metadata():
    licenses = Licenses()
    licenses.add("free-1.dist-info/METADATA", "Name: free\nLicense-Expression: MIT\n\nGPL in the description")
    licenses.add("free-1.dist-info/RECORD", "free/__init__.py,,\nfree_helper.py,,\nfree-1.dist-info/METADATA,,")
    licenses.add("strict-1.dist-info/RECORD", "strict/__init__.py,,")
    licenses.add("strict-1.dist-info/METADATA", "Classifier: License :: OSI Approved :: GNU General Public License v3")
    licenses.add("old-1.dist-info/METADATA", "License: BSD 3-Clause\n")
    licenses.add("old-1.dist-info/RECORD", "old.py,,")
    kinds = [licenses.of(p, "") for p in ("free/sub/x.py", "free_helper.py", "strict/x.py", "old.py", "who.py")]
    assert kinds == ["permissive", "permissive", "copyleft", "permissive", "unknown"]


def test_a_real_installation_is_understood():
    package = importlib.metadata.distribution("numpy")
    licenses = Licenses()
    for name in ("METADATA", "RECORD"):
        licenses.add(f"numpy-2.dist-info/{name}", package.read_text(name))
    assert licenses.of("numpy/linalg/linalg.py", "") == "permissive"


def test_licence_files_are_known_by_name():
    names = ["LICENSE", "a/LICENCE.txt", "COPYING", "COPYING.LESSER", "LICENSE-MIT", "LICENSE-APACHE.txt", "UNLICENSE"]
    assert all(map(is_license_file, [*names, "x.dist-info/METADATA", "license.md"]))
    assert not any(
        map(is_license_file, ["licenses.py", "license_rules.py", "a/copyright.py", "METADATA", "LICENSES.json"])
    )
