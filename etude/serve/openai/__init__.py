"""The engine for other people's programs: the OpenAI-compatible HTTP side of `etude serve`.

Read in this order: errors (every error as JSON), request_base and request_models (what a request may say), validation
(a body against them), tokenize_models, prompts (messages and tools to token ids), streaming (sampled ids to text,
thinking and calls, while they arrive), grammar, call_grammar and steering (answers that must be JSON, or a call),
choices (answers in the making), responses and responses_route (the JSON that goes out), metrics, body and api_key (what
is let in), app (the routes), openapi (the description, from the same models).
"""
