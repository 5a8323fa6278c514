"""An engine in a process of its own, behind HTTP. Read in this order: messages (of the training loop, as JSON and as
frames), engine_routes (what the training loop asks), connection (errors and deadlines beside the routes), server (the
process), lend (an engine that is lent to a run), openai/ (the routes for other people's programs).
"""
