"""The stages from raw code to a benchmarked agent: which there are, what each needs, and running them in order.

In reading order: `stages/` (one file for each group of stages, `table` lists them all), `demonstrations` (tasks solved
by the reference policy), `hinted_demonstrations` (those that heed a hint), `execute` (runs what a command asks for),
`half_loop` (rollouts or training alone, for debugging), `find_model` (which model and recipe a path means), `estimate`
(time, memory and disk beforehand), `search_vectors` (words for the tool `search`), `hub` (models by name from the
Hugging Face hub).
"""
