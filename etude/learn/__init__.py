"""The learner: streams -> loss -> gradient -> step. SFT, RL, textual feedback and MTP are one step with other streams.

Read in this order: streams (what a batch asks for), packing, loss, optim, learner (the five verbs); a step executes
these five and no more, but for twins (teachers), where a batch has some. item_checks (what of an item is refused before
a process computes it). Then lora (adapters in place of whole weights), tensor_parts (files of several writers), state
(what a checkpoint holds), background_save (it is written beside training), start_learner (on one rank or several),
texts (sequences in files, for several ranks), loop (what training stages share), pretrain, extend (longer contexts),
sft, mtp and drafts (how its heads fare); word_vectors (for code search, beside all of these). `parallel/` is the
learner on several ranks.
"""
