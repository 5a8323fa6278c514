"""Where things run: programs beside this one, started, watched, and started again when they die.

In reading order: `placement` (a program, and the protocol of what starts it), `local` (processes on this machine, and
supervisors of programs), `ray_supervisor` and `ray_placement` (programs on the nodes of a Ray cluster), `start` (which
of them a recipe names), `engines` (engine replicas under supervisors), `elastic` (replicas that come and go), `vllm`
(vLLM as an engine: its command line), `vllm_server` (the process that it runs under), `ranks` (the ranks of a learner).
"""
