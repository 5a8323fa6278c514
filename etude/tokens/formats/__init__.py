"""How models spell tool calls, one small file for each format.

In reading order: `base` (what a format is), `hermes`, `qwen_coder`, `deepseek`, `kimi`, `table` (all of them, in the
order in which a template is asked).
"""
