"""Search of code by questions: which file does what a sentence says.

In reading order: `words` (text to words), `chunks` (a file in pieces), `lexical` (BM25 over pieces and files),
`embedding` (words as trained vectors), `index` (both together, kept fresh), `workspace` (the files of a sandbox),
`pairs` (what the vectors are trained on). Training needs torch and is in etude/learn/word_vectors.py.
"""
