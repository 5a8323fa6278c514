"""Another sensible name for something: one of its words is exchanged for one that means much the same.

A name none of whose words is known gets no other name. Knows words; no code.
"""

from __future__ import annotations

import builtins
import keyword
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Final

# A word, and what may stand in its place: what somebody does, at the beginning of a function's name ...
_VERBS: Final = """
accumulate gather / add include / append attach / apply use / assign give / begin start / build make construct
calc calculate / call invoke / check verify / chop cut / cleanup tidy / clear wipe / clone duplicate / close shut
collapse shrink / collect gather / combine merge unite / compare contrast / compile prepare / compose chain
compute calculate derive / concat chain / construct build / contains includes / convert translate / copy duplicate
count tally / create make build / curry prefill / cut split / decode unpack / delete erase / describe explain
detect recognise / diff difference / discard drop / display show / divide split / drop leave / dump export
encode pack / end finish / ensure require / escape quote / evaluate work_out / execute perform / expand unfold
extract take_out / fetch get obtain / filter select / find locate / flatten level / flip reverse / format render
gather collect / generate produce / get fetch obtain / group cluster / handle treat / has holds / ignore skip
include add / init prepare / insert place / interleave alternate / intersect cross / invoke call / iter iterate
join connect / keep retain / load read / locate find / log note / lookup search / make build create / map transform
match fit / memoize remember / merge combine / move shift / normalize unify / open enter / order arrange
overlap intersect / overlaps intersects / parse read / partition divide / peek glance / perform do / pick choose
pipe channel / place put / pluck pick / pop take / prepare arrange / print emit / process handle / produce generate
push put / put place / quote wrap / read load / record note / reduce fold / refresh renew / register enrol
remove drop take / render format / replace exchange / require demand / reset restore / resolve settle / retrieve fetch
reverse turn / run execute / save store / search look / select choose / send deliver / serialize pack / set assign
setup prepare / show display / skip omit / slice cut / sort order / split divide / start begin / stop halt
store keep / strip trim / sum total / transform change / translate convert / trim strip / unpack open / unquote unwrap
unwrap reveal / update refresh / validate verify / verify check confirm / visit tour / walk traverse / wrap enclose
write store
"""
# ... and what it is about, anywhere.
_NOUNS: Final = """
algorithm method / algorithms methods / arg argument / args arguments / attr attribute / attribute property
base root / block section / body inside / buf buffer / buffer store / builder maker / cache store / callback hook
cart basket / cb callback / cents pennies / cfg config / char character / chars characters / child descendant
children descendants / claim statement / claims statements / cnt count / col column / column field / comment remark
comments remarks / conf settings / config settings / connection link / content text / converter translator
custom special / data content / decoder unpacker / default fallback / delimiter separator / depth level / dest target
dict mapping / dir folder / directory folder / discount rebate / dst target / element entry / elements entries
empty void / encoder packer / entries items / entry item / err error / error failure / errors failures / exact precise
exc fault / exception fault / exceptions faults / expr expression / expression formula / extension addition
extensions additions / extra additional / factory maker / fallback default / field slot / file document
filename document / files documents / fn function / folder directory / formatter renderer / frequencies tallies
func function / grammar syntax / grouped clustered / idx index / incomplete partial / index position
initials letters / input source / interval span / intervals spans / invalid wrong / issuer sender / item entry
items entries / joiner connector / keyword term / keywords terms / kind sort / label title / lazy deferred
leading front / leeway slack / len length / length extent / level degree / lexer scanner / limit bound / line row
lines rows / link reference / links references / list series / literal constant / literals constants
lookahead preview / mapping table / mark sign / matcher fitter / max most / message notice / messages notices
min least / missing absent / mode manner / msg message / name label / names labels / node vertex / nodes vertices
note remark / num number / number amount / offset shift / optional possible / options settings / opts options
output result / pair couple / pairs couples / param parameter / params parameters / parent ancestor / parser reader
path location / paths locations / pattern template / payload content / plain simple / pos position / position place
prefix lead / prev previous / previous former / price amount / processor worker / prop property
properties attributes / query request / raw plain / reader parser / ref reference / reply answer / request query
res result / response reply / result outcome / results outcomes / ret result / root base / row record / rows records
rule law / rules laws / safe secure / secret password / section part / sep separator / separator delimiter
seq sequence / session visit / sign mark / signature seal / size extent / sliding rolling / slug handle
source origin / span interval / src source / stack pile / state condition / statement sentence / statements sentences
status condition / step stage / stmt statement / str text / stream flow / strict exact / string text / strings texts
style look / subject topic / suffix tail / target goal / template pattern / text content / timeout patience
title heading / tmp temporary / token lexeme / tokens lexemes / topic subject / total sum / tree hierarchy
unique distinct / uri address / url address / util helper / utils helpers / val value / valid sound
validator verifier / value amount / visitor guest / width breadth / word term / words terms / worker processor
wrapper envelope / writer author
"""


def other_name(name: str, taken: Callable[[str], bool], rng: random.Random) -> str | None:
    """The name with one word exchanged, in its own spelling, that is not `taken`; None where no word is known."""
    parts = words_of(name)
    first = next((number for number, part in enumerate(parts) if part.strip("_")), 0)
    known = [verbs() if number == first and name == name.lower() else {} for number in range(len(parts))]
    choices = [
        (number, word)
        for number, part in enumerate(parts)
        if not any(each.isdigit() for each in parts[max(0, number - 1) : number + 2])  # base64url is one word
        for word in (known[number] | nouns()).get(part.lower(), ())
    ]
    for place, word in rng.sample(choices, len(choices)):
        made = "".join([*parts[:place], _as(parts[place], word, name), *parts[place + 1 :]])
        if made.isidentifier() and not is_pythons(made) and not taken(made):
            return made
    return None


@cache
def verbs() -> dict[str, tuple[str, ...]]:
    """For each word that is known, others for it."""
    return _read(_VERBS)


@cache
def nouns() -> dict[str, tuple[str, ...]]:
    return _read(_NOUNS)


def _read(table: str) -> dict[str, tuple[str, ...]]:
    entries = [entry.split() for entry in table.replace("\n", " / ").split(" / ") if entry.strip()]
    return {first: tuple(others) for first, *others in entries}


def words_of(name: str) -> list[str]:
    """The pieces of a name: words, and the underscores between them."""
    return re.findall(r"_+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)


def is_distinct(name: str) -> bool:
    """Whether a name is no ordinary word, so that it means the same in a sentence as in code."""
    return "_" in name.strip("_") or re.search(r"[a-z0-9][A-Z]", name) is not None


def is_pythons(name: str) -> bool:
    """Whether the language has a meaning for it."""
    return keyword.iskeyword(name) or keyword.issoftkeyword(name) or hasattr(builtins, name)


def _as(like: str, word: str, name: str) -> str:
    """A word spelled as the one that it replaces."""
    if like.isupper() and len(like) > 1:
        return word.upper()
    if "_" not in name.strip("_") and name != name.lower():  # CamelCase, or its cousin
        said = "".join(piece.capitalize() for piece in word.split("_"))
        return said if like[0].isupper() else said[0].lower() + said[1:]
    return word.capitalize() if like[0].isupper() else word
