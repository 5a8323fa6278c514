"""Supervised fine-tuning: conversations in, loss on the assistant's own tokens only.

A conversation is one sequence, never cut and never packed into another's context; under a chat template that rewrites
history it is one for each time that happens, and no turn is learnt twice. Which tokens are the assistant's is what the
model's dialect says of each span. Plain text can be learnt beside, as much of it in each step as of conversations: what
a model forgets in fine-tuning is what it no longer reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Sized
from pathlib import Path

import numpy as np

from etude.core.cluster_settings import LearnerRanks
from etude.core.errors import EtudeError
from etude.core.policy import Assistant, Message, User
from etude.core.progress import track
from etude.core.run import Run
from etude.core.settings import RunSettings, SftSettings
from etude.core.token_files import Slice
from etude.learn.loop import Draw, labelled, labelled_texts, token_bytes, train, trained_heads
from etude.learn.lora import adapt
from etude.learn.pretrain import POSITION, Documents, InFiles, read_position
from etude.learn.start_learner import start_learner
from etude.learn.streams import Floats, Ids
from etude.learn.texts import Text, text_files
from etude.model.decoder import Decoder
from etude.tokens.dialect import Dialect, ToolSchema
from etude.tokens.render import Rendered

STAGE = "sft"


def sft(
    run: Run,
    decoder: Decoder,
    dialect: Dialect,
    conversations: Sequence[tuple[Message, ...]],
    settings: SftSettings,
    machine: RunSettings,
    stage: str = STAGE,
    tools: Sequence[ToolSchema] = (),
    ranks: LearnerRanks | None = None,
    text: Documents | None = None,
) -> Path:
    """Trains `decoder` on the conversations, or continues where the run stopped; returns the last checkpoint.

    `text` is learnt beside them, with the share of the loss that the settings give it.
    """
    pieces = tokenise(conversations, dialect, settings.sequence, tools)
    steps = plan([len(ids) for ids, _ in pieces], settings.batch_tokens, settings.epochs, machine.seed)
    adapt(decoder, settings.lora, machine.seed)
    with (
        start_learner(
            decoder,
            settings.optim,
            len(steps),
            settings.micro_tokens,
            device=machine.device,
            compute=machine.compute,
            lora=settings.lora,
            ranks=ranks,
            threads=machine.threads,
        ) as learner,
        text_files(run.path / f"{stage}-texts") as files,
    ):
        saved = run.latest(stage)
        if saved is not None:
            learner.restore(saved)
            if text is not None:
                text.seek(read_position(saved))
        sizes_V = token_bytes(dialect)
        heads = trained_heads(decoder.config, settings)
        # Written once: a rank that rendered its conversations itself would have to know dialect and tools.
        several = learner.ranks > 1 and (text is None or isinstance(text, InFiles))
        sizes, texts = (files.sizes(sizes_V), files.texts(pieces)) if several else (None, [])

        def draw() -> Draw:
            if sizes is not None:
                chosen = [texts[i] for i in steps[learner.steps]]
                if isinstance(text, InFiles):
                    chosen += texts_beside(chosen, text.slices(settings.batch_tokens), settings.text_share)
                return labelled_texts(chosen, heads, sizes)
            drawn = [pieces[i] for i in steps[learner.steps]]
            if text is not None:
                drawn += beside(drawn, text.take(settings.batch_tokens), settings.text_share)
            return labelled(drawn, heads, sizes_V)

        def write(directory: Path) -> None:
            dialect.save(directory)
            if text is not None:
                (directory / POSITION).write_text(json.dumps(text.position()) + "\n")

        return train(run, stage, learner, draw, write, save_every=settings.save_every, seconds=settings.seconds)


def beside(drawn: Sequence[tuple[Ids, Floats]], text: Sequence[Ids], share: float) -> list[tuple[Ids, Floats]]:
    """Pieces of text, each token weighted so that all of them have this share of the loss of conversations and text."""
    weight = _weight_beside(sum(float(own_T[1:].sum()) for _, own_T in drawn), text, share)
    return [(np.asarray(ids, np.int64), np.full(len(ids), weight, np.float32)) for ids in text]


def texts_beside(chosen: Sequence[Text], text: Sequence[Slice], share: float) -> list[Text]:
    """As `beside`, of what lies in files."""
    weight = _weight_beside(sum(each.counted for each in chosen), text, share)
    return [Text.whole(ids, weight) for ids in text]


def _weight_beside(own: float, text: Sequence[Sized], share: float) -> float:
    return own * share / (1 - share) / max(1, sum(len(ids) - 1 for ids in text))


def tokenise(
    conversations: Sequence[tuple[Message, ...]], dialect: Dialect, longest: int, tools: Sequence[ToolSchema] = ()
) -> list[tuple[Ids, Floats]]:
    """Ids of each conversation and 1 where the assistant's tokens are; refuses, by name, what cannot be learnt from."""
    pieces: list[tuple[Ids, Floats]] = []
    refused = []
    with track("rendering conversations", len(conversations), "conversations") as bar:
        for number, messages in enumerate(conversations, start=1):
            for rendered in sequences(messages, dialect, tools):
                own_T = np.array(rendered.per_token().own, np.float32)
                size = len(rendered.ids)
                if size > longest:
                    refused.append(f"{_name(number, messages)} has {size} tokens, sft.sequence is {longest}")
                # Entry 0 is predicted from nothing, so a turn that is there alone teaches nothing.
                elif not own_T[1:].any():
                    refused.append(f"{_name(number, messages)} has no turn of the assistant to learn from")
                pieces.append((np.array(rendered.ids, np.int64), own_T))
            bar.advance()
    if not pieces:
        raise EtudeError("there are no conversations to learn from; fill sft.data with at least one")
    if refused:
        more = f", and {len(refused) - 3} more" if len(refused) > 3 else ""
        raise EtudeError(f"{'; '.join(refused[:3])}{more}; raise sft.sequence or take them out of sft.data")
    return pieces


def sequences(messages: Sequence[Message], dialect: Dialect, tools: Sequence[ToolSchema]) -> list[Rendered]:
    """A conversation as the model meets it, turn by turn: a new sequence wherever its template rewrites the old one."""
    found = [Rendered()]
    written = 0
    for place, message in enumerate(messages):
        if isinstance(message, Assistant):
            if not dialect.extend(found[-1], messages[written:place], open_turn=True, tools=tools):
                # The template would rewrite what stands there: most of those that know thinking drop it from history.
                found.append(Rendered())
                dialect.extend(found[-1], messages[:place], open_turn=True, tools=tools)
            dialect.extend(found[-1], [message], open_turn=False, tools=tools)
            written = place + 1
    if written < len(messages):
        dialect.extend(found[-1], messages[written:], open_turn=False, tools=tools)
    return found


def plan(lengths: Sequence[int], batch_tokens: int, epochs: int, seed: int) -> list[list[int]]:
    """The conversations of every step: each epoch in an order of its own, as many at a time as fit.

    It follows from its arguments alone, so a resumed run knows what comes next from its step.
    """
    steps: list[list[int]] = []
    for epoch in range(epochs):
        tokens = batch_tokens + 1
        # By seed and epoch: orders differ between epochs, and a resumed run draws the same ones.
        for i in np.random.default_rng((seed, epoch)).permutation(len(lengths)).tolist():
            if tokens + lengths[i] > batch_tokens:
                steps.append([])
                tokens = 0
            steps[-1].append(i)
            tokens += lengths[i]
    return steps


def _name(number: int, messages: Sequence[Message]) -> str:
    asked = next((message.text for message in messages if isinstance(message, User)), "")
    start = " ".join(asked.split())[:40]
    return f"conversation {number}" + (f" ({start!r})" if start else "")
