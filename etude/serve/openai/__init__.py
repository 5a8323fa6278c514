"""The engine for other people's programs: the OpenAI-compatible HTTP side of `etude serve`.

Read in this order: refusal (every error as JSON), tables (what a request may say, as JSON schema), validate (a value
against such a table), asks (a checked body as plain values), prompts (messages and tools to token ids), reading
(sampled ids to text, thinking and calls, while they arrive), choices (answers in the making), answers (the JSON that
goes out), metrics, bodies and keys (what is let in), app (the routes), document (the OpenAPI description, from the same
tables).
"""
