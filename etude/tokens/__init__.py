"""Text, messages and token ids, exactly: what is written can be read back, byte for byte.

In reading order: `tokenizer` (text <-> ids), `render` (messages -> ids, with spans), `parse` (ids -> messages),
`conversations` (JSONL <-> messages); `dialect` (what everybody above works with) and `native`, which is all of that.

For checkpoints that bring their own: `checkpoint_files`, `vocabulary` (their tokenizer), `ranks` (Kimi's), `jinja`
(their chat template, in a sandbox), `formats` (how they spell calls), `turns` (what they sampled, read back), `shape`
(what that template does), `hiding` and `rows` (what it is given), and `template`, the dialect that all of it makes.
"""
