"""The sampler: many requests decoded together over one cache, with the weights swapped under them.

Read in this order: request (one answer in the making), blocks (who owns which piece of cache memory), scheduler
(who computes what in the next step), cache (the tensors), attend (attention over them), sampler (logits to tokens),
columns (the forward of a dense model on a CPU), runner (what computes a step), accept and speculate (steps that have
drafts), engine (the step that joins them), cuda (the runner of a GPU); then the same from another process: thread (the
engine beside an event loop), wire (the messages), connection (errors and deadlines beside the routes), server, client;
inline, the same within one process; openai, the server for other people's programs; and endpoint, models that other
servers have.
"""
