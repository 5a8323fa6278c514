"""The words that katas are made of, and the one rule that keeps training and evaluation apart.

A word is held out when its CRC-32 is a multiple of three, a number when it is itself a multiple of three. The rule
looks at nothing else, so the two sides stay apart however many lists a word is in. Beside the lists there are words
without end, invented: who meets new ones all the time learns to copy a word; a few hundred would be learnt by heart.
"""

from __future__ import annotations

import random
import zlib
from functools import cache
from keyword import iskeyword

Pool = tuple[str, ...]


def is_held_out(value: str | int) -> bool:
    """Which side a word or a number is on: no task for training uses one that is held out, and the other way round."""
    return (zlib.crc32(value.encode()) if isinstance(value, str) else value) % 3 == 0


@cache
def side(pool: Pool, held_out: bool) -> Pool:
    """The words of a list that one side may use."""
    return tuple(word for word in dict.fromkeys(pool) if is_held_out(word) == held_out and word not in LOCALS)


def invent(rng: random.Random, held_out: bool) -> str:
    """A word that is in no list but could be: the head of one word and the tail of another, such as `comrket`."""
    words = _known(held_out)
    while True:
        first, second = rng.choice(words), rng.choice(words)
        word = first[: rng.randint(2, 5)] + second[-rng.randint(2, 5) :]
        if 4 <= len(word) <= 8 and is_held_out(word) == held_out and word not in LOCALS and not iskeyword(word):
            return word


@cache
def _known(held_out: bool) -> Pool:
    """All words of one side."""
    pools = (PACKAGES, MONEY, TITLES, AMOUNTS, GOODS, ROWS, CODES, TIMES, PLACES, NUMBER, TEXT, LIST, WORDLIST, RECORDS)
    return side(tuple(word for pool in (*pools, TABLE, FIELD, MEASURE, WHOLE, DATA) for word in pool), held_out)


def _pool(words: str) -> Pool:
    return tuple(words.split())


PACKAGES = _pool("""
    shop fleet garden harbor depot studio clinic bakery museum farm market orchard kitchen hotel bank school cafe mill
    tower bridge canal island river meadow valley summit beacon anchor compass lantern pepper maple cedar willow falcon
    otter badger heron comet orbit nova quartz cobalt amber copper silver ember frost breeze delta atlas zephyr pixel
    tango polka raven robin salmon tulip violet walnut yonder basil cactus dune eagle fjord grove hazel iris jasper
    kayak lemur mocha nectar opal panda quail ranger saddle tundra umbra velvet wagon yacht zebra acorn bison coral
    dingo echo ferret gecko hermit indigo jungle kiosk lagoon marble nimbus oasis parrot reef sparrow temple vault
""")

# What functions and modules are about, by theme.
MONEY = _pool("""
    price cost fee tax bill fare rent wage toll tip loan debt bonus refund charge budget invoice payment salary deposit
    margin profit duty levy premium pension reward fine stake gift grant pledge claim credit cash fund trade sale
    auction lease income outlay expense rebate surplus deficit ransom bounty dowry estate asset bond
""")
TITLES = _pool("""
    title label caption heading phrase slogan motto remark note tag topic chapter headline subject legend banner notice
    message comment letter poem verse story quote memo footer section preface review essay report speech proverb riddle
    lyric novel script prologue abstract brochure leaflet poster signboard anthem ballad sermon
""")
AMOUNTS = _pool("""
    score level weight height speed age width volume power grade rank load heat gain loss dose limit angle pulse signal
    scale force tempo pitch bound gauge meter reading sensor torque voltage current pressure density humidity altitude
    latency traffic output surge quota ratio mass energy charge drift offset radius
""")
GOODS = _pool("""
    stock box crate parcel pallet shelf order cart basket product part tool bottle carton barrel sack jar tray bundle
    packet lamp chair brick panel cable screw wheel engine battery ribbon candle pencil mirror blanket pillow hammer
    ladder bucket broom kettle plate spoon carpet curtain helmet saddle tent rope anvil wrench
""")
ROWS = _pool("""
    record entry field sheet report log event sample batch series feed queue track trail history journal survey census
    roster archive digest extract summary index catalog register ledger diary dataset snapshot backlog inbox listing
    outline excerpt bulletin transcript manifest docket agenda playlist timeline chart grid matrix vector
""")
CODES = _pool("""
    key badge ticket serial card plate stamp token pin account locker voucher coupon barcode passport permit seal
    cipher secret mark symbol handle alias password signature prefix suffix tag
    checksum header pattern marker label cookie nickname callsign rune glyph emblem crest
""")
TIMES = _pool("""
    time hour clock shift visit trip pause lesson meeting flight race timer delay session night watch rehearsal concert
    appointment season period term cycle phase stage interval window slot week month year quarter evening morning
    holiday deadline schedule calendar timetable countdown sprint tour voyage journey festival semester
""")
PLACES = _pool("""
    road route town node link path port stop gate room street corner square village lane trail ferry tunnel junction
    crossing district border coast harbour airport castle stadium camp alley avenue plaza pier dock ramp lobby attic
    cellar hall porch yard field forest canyon glacier volcano desert swamp
""")

# Names of arguments, by what they hold.
NUMBER = _pool("""
    quantity price cost level weight height width speed distance age rate figure units stars coins marks goals score
    budget volume power load gain loss dose angle pulse force pitch meter reading pressure altitude traffic offset
    radius mass energy heat rank grade balance credit share dollars cents pages seats guests votes tries laps miles
    degrees watts limit target step
""")
TEXT = _pool("""
    text title phrase message label source string content sentence chunk caption passage header body note remark quote
    raw topic subject term slogan motto tag comment letter verse story memo clue answer question reply prompt command
    query address nickname username keyword hint excerpt paragraph headline footer draft spelling token
    payload argument option
""")
LIST = _pool("""
    items values numbers scores entries amounts prices data series readings levels ages marks weights lengths samples
    costs heights results figures totals units ranks grades widths speeds distances rates stars coins goals budgets
    volumes loads gains losses doses angles pulses laps miles votes tries shares balances temps ticks offsets
    masses powers counts
""")
WORDLIST = _pool("""
    names words labels titles tags keys tokens colors cities fruits animals guests towns brands songs books teams
    players streets rivers flowers planets tools pets birds trees countries islands mountains actors authors poets
    singers dishes spices drinks games sports hobbies jobs shops parks clubs boats trains dances fabrics metals stones
    letters
""")
RECORDS = _pool("""
    rows records orders people products users books parcels guests tickets bills cars houses courses jobs photos
    members flights events visits claims shops films boats trains hotels rooms songs albums recipes meals patients
    students teachers drivers clients vendors invoices payments loans bikes phones laptops servers tasks issues
    reviews posts
""")
TABLE = _pool("""
    mapping lookup counts stock ages prices index scores totals limits rates shares votes weights levels places ranks
    budgets costs fees wages fares balances heights widths speeds distances volumes loads doses grades stars
    quotas bonuses taxes salaries tariffs inventory registry directory glossary dictionary
""")
FIELD = _pool("""
    city color kind owner brand title street team model country status author genre role shape flavor fabric breed
    engine origin category priority phone region currency language material maker place label topic family style
    season pattern finish crew sponsor dealer village planet nickname
""")
MEASURE = _pool("""
    price weight height width level rating speed year age seats pages floor volume power stock credit fee tempo rank
    votes doors wheels rooms score load miles liters grams watts cost bonus tax rent area mass noise heat wage
    tips laps goals wins
""")
WHOLE = _pool("""
    crate box week day foot inch pound ounce meter pack sheet dozen egg gallon cup hour mile yard block stone bar truck
    pallet case bottle seat bus page book shelf carton jar minute second month year pint quart spoon bag sack barrel
    wagon train ship tray plate nest herd flock swarm team crew squad
""")

# Words that stand in strings: parameters and test data.
DATA = _pool("""
    pear plum fig lime kiwi apple lemon peach mango olive onion leek bean corn rice wheat oat rye salt sugar milk tea
    bread cheese honey butter soup stew cake pie cat dog fox owl hen cow pig goat duck swan crow wolf bear deer mole
    frog toad newt seal crab clam trout perch oak elm ash pine fir birch moss fern rose lily daisy ivy red blue green
    gold gray black white pink brown rain snow wind storm cloud sun moon star lake hill cave sand clay rock iron zinc
    tin lead paper glass wood wool silk rope nail bolt door wall roof floor lamp desk chair pen ink book coin drum
    flute horn bell harp piano boat ship raft train bus car bike van north south east west spring summer autumn winter
    anna ben carl dora emil finn gina hugo ida jack kate leo mia nina otto paul rosa sam tina uma vera will york zoe
    oslo rome paris cairo lima delhi tokyo quito bern turin
""")

# Names that bodies use for themselves. No argument is ever called so, or a body would mean something else.
LOCALS = _pool("""
    a amount b best c cell check code column count days depth digit end good groups hours i item j k kept key length
    line lines minutes most name now number one other out p parts passed piece points recent row run seen sign size
    sizes start steps table total v value word x y
""")

MARKS = _pool("- _ . : / | + ~ # ; = * @ & ^ ! > < ? , $ %")  # separators, fill characters and comment signs
LETTERS = "abcdefghijklmnopqrstuvwxyz"
