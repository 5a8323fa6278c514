"""An engine in a process of its own, behind HTTP. Read in this order: messages (of the training loop, as JSON and as
frames), connection (errors and deadlines beside the routes), server (the process and the training loop's routes),
frames (the same verbs without HTTP), lend (an engine that is lent to a run), openai/ (the routes for other people's
programs).
"""
