"""Text, messages and token ids, exactly: what is written can be read back, byte for byte.

In reading order: `tokenizer` (text <-> ids), `render` (messages -> ids, with spans), `parse` (ids -> messages),
`conversations` (JSONL <-> messages).
"""
