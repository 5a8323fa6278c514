"""An engine in a process of its own, behind HTTP. Read in this order: messages (of the training loop, as JSON),
connection (errors and deadlines beside the routes), server (the process and the training loop's routes), openai/ (the
routes for other people's programs).
"""
