"""A hosted model as a policy: any server that speaks the OpenAI-compatible interface. Never imports torch.

In reading order: `messages` (our messages to theirs and back), `limits` (rates and budgets), `transport` (one request,
its repetitions and its refusals), `policy` (a context in, a sample out).
"""
