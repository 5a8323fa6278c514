"""Where things run: programs beside this one, started, watched, and started again when they die.

In reading order: `local` (supervisors of processes on this machine), `engines` (engine replicas under them),
`vllm` (vLLM as an engine: its command line), `vllm_server` (the process that it runs under).
"""
