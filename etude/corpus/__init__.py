"""Code -> filtered -> deduplicated -> decontaminated -> token shards -> a mix that training reads.

In reading order:

    document.py       the nouns: Document, Rejected, Source; how bytes of a file become a document
    sources/          folders, archives, git checkouts and history, the standard library, JSONL and Parquet
    html_text.py      web pages to text
    licenses.py       permissive, copyleft or unknown, and for which files
    filters.py        why a file is not worth training on
    word_hashes.py    hashes of word sequences, shared by the next two
    dedupe.py         exact and near-duplicates
    decontaminate.py  overlap with texts that must not be learnt
    quality.py        how good a text is, learnt from labelled examples
    quality_rules.py  how good a text is, by thresholds for each level
    split.py          train or held out
    fim.py            fill-in-the-middle
    stable_random.py  random choices that are the same on every machine
    manifest.py       what a finished corpus holds, and the funnel that led to it
    spool/            documents on disk between the steps of a build, and the processes that look at them
    selection.py      read -> filter -> deduplicate -> decontaminate -> split
    ordering.py       a repository's files, each after those that it imports
    shards.py         token ids on disk, memory-mapped
    encode.py         selected documents -> shards
    build.py          the steps in order; killed builds, finished corpora
    mix.py            weighted, shuffled, resumable reading of the shards
"""
