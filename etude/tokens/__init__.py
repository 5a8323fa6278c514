"""Text, messages and token ids, exactly: what is written can be read back, byte for byte.

In reading order: `tokenizer` (text <-> ids), `render` (messages -> ids, with spans), `parse` (ids -> messages),
`conversations` (JSONL <-> messages); `dialect` (what everybody above works with) and `native`, which is all of that;
`text_tokenizer` (text that is no conversation, in our tokenizer or a checkpoint's).

For checkpoints that bring their own: `checkpoint_files`, `vocabulary` (their tokenizer), `tiktoken_ranks` (Kimi's),
`jinja_sandbox` (their chat template), `formats/` (how they spell calls), `turn_parsing` (what they sampled, read back),
`template_layout` (what that template does), `template_escaping` and `template_messages` (what it is given), and
`template`, the dialect that all of it makes.
"""
