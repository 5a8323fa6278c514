"""Where documents come from, one file for each kind of source.

In reading order: `folder` (the standard library, installed packages, any folder), `archive` (zip, wheel, tar, tar.gz,
read without unpacking), `git` (the tracked files of a checkout's HEAD), `commits` (its history, a commit a document),
`records` (JSONL, Parquet, data sets of Hugging Face), `table` (the built-in sources by name).
"""
