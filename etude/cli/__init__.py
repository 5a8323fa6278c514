"""The `etude` command, one file for each group of commands: parsing, calling, and saying what happened.

In reading order: `main` (all commands), `console` (what they share: answers for people and scripts, options), `runs`
(the stages of a run), `status` (how far a run is), `recipes`, `tasks`, `agents` (who acts), `rollouts` and
`saved_rollouts`, `grade`, `audit`, `bench`, `study`, `model`, `plan`, `serve` and `chat` (with `chat_client`), `env`
(and sandboxes), `doctor`.
"""
