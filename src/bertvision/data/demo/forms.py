"""Topics of the demo set, and the reader of the wording files.

A wording file is a string of lines. Alternatives on a line are separated by " / ":

    * same: ...             what joins two clauses about one thing
    * other: ...            what joins two clauses about two things
    * intro: ...            a sentence naming both things {X}, {Y} of the kind {P}
    * aside: ...            a sentence about {S} that no question asks for, with {person}, {place}, {org}, {year}
    # topic                 opens a topic of `TOPICS`
    attribute > ...         clauses that state the attribute's value {A} of the thing {S}
    attribute ? ...         questions for it

{S} in a clause may become "it", so no form may need a genitive or a plural of it.
"""

import re
from dataclasses import dataclass
from functools import cache

from bertvision.data.demo.wording import WORDING

__all__ = ["TOPICS", "Attribute", "Topic", "Wording", "read_wording", "stems"]


_COMMON = r"(?:a|an|the|of|in|on|at|by|to|for|with|from|is|are|was|were|did|does|do|has|have|had)"


@dataclass(frozen=True)
class Topic:
    """A kind of thing a passage compares two of."""

    noun: str
    plural: str
    called: tuple[str, ...]
    """How such a thing is called; {} is its own word."""
    kinds: dict[str, str]
    """Attribute -> kind of its value (`values.py`)."""


@dataclass(frozen=True)
class Attribute:
    clauses: tuple[str, ...]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Wording:
    """Everything one part may say."""

    joins: dict[str, tuple[str, ...]]
    intros: tuple[str, ...]
    asides: tuple[str, ...]
    attributes: dict[tuple[str, str], Attribute]
    """By (topic, attribute)."""


def _kinds(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


TOPICS: dict[str, Topic] = {
    "expedition": Topic(
        "expedition",
        "expeditions",
        ("the {} expedition", "the {} voyage", "the {} trek", "the {} crossing"),
        _kinds("leader:person doctor:person year:year goal:place funder:org days:days"),
    ),
    "bridge": Topic(
        "bridge",
        "bridges",
        ("the {} Bridge", "the {} Viaduct", "the {} Footbridge", "the {} Arch"),
        _kinds("designer:person opener:person river:stem length:metres year:year material:material"),
    ),
    "company": Topic(
        "firm",
        "firms",
        ("the {} Company", "the {} Works", "the {} Mills", "the {} Factory"),
        _kinds("founder:person manager:person town:place product:goods workers:count year:year"),
    ),
    "painting": Topic(
        "picture",
        "pictures",
        ("the {} Portrait", "the {} Fresco", "the {} Engraving", "the {} Sketch"),
        _kinds("painter:person buyer:person sitter:person gallery:org year:year price:money"),
    ),
    "comet": Topic(
        "comet",
        "comets",
        ("Comet {}", "the Great Comet {}", "the Little Comet {}"),
        _kinds("finder:person orbit:person site:place period:years year:year colour:colour"),
    ),
    "dish": Topic(
        "dish",
        "dishes",
        ("{} pudding", "{} stew", "{} pie", "{} soup"),
        _kinds("inventor:person writer:person town:place filling:filling time:minutes"),
    ),
    "club": Topic(
        "club",
        "football clubs",
        ("{} United", "{} Rovers", "{} City", "{} Athletic"),
        _kinds("captain:person coach:person ground:place colour:colour year:year crowd:count"),
    ),
    "instrument": Topic(
        "instrument",
        "instruments",
        ("the {} violin", "the {} cello", "the {} guitar", "the {} harp"),
        _kinds("maker:person player:person wood:wood town:place year:year price:money"),
    ),
    "island": Topic(
        "island",
        "islands",
        ("{} Island", "the Isle of {}", "{} Rock"),
        _kinds("explorer:person owner:person harbour:place people:count animal:animal"),
    ),
    "law": Topic(
        "law",
        "laws",
        ("the {} Act", "the {} Charter", "the {} Code", "the {} Decree"),
        _kinds("author:person enemy:person year:year fine:money votes:count"),
    ),
    "battle": Topic(
        "battle",
        "battles",
        ("the Battle of {}", "the Siege of {}", "the Raid on {}"),
        _kinds("victor:person loser:person year:year dead:count place:place"),
    ),
    "theatre": Topic(
        "house",
        "theatres",
        ("the {} Theatre", "the {} Playhouse", "the {} Opera", "the {} Hall"),
        _kinds("architect:person director:person seats:count town:place year:year cost:money"),
    ),
    "ship": Topic(
        "ship",
        "ships",
        ("the steamer {}", "the schooner {}", "the barge {}", "the frigate {}"),
        _kinds("captain:person owner:person port:place cargo:goods year:year"),
    ),
    "newspaper": Topic(
        "paper",
        "newspapers",
        ("the {} Herald", "the {} Gazette", "the {} Courier", "the {} Times"),
        _kinds("editor:person owner:person town:place copies:count year:year"),
    ),
}


def stems(text: str) -> list[str]:
    """The words of a text but the commonest, each cut to five letters: "designed" meets "designer"."""
    return [word[:5] for word in re.findall(rf"\b(?!{_COMMON}\b)\w+", text.lower())]


@cache
def read_wording(part: str) -> Wording:
    """The wording of one part, every topic and attribute present."""
    extra: dict[str, list[str]] = {"same": [], "other": [], "intro": [], "aside": []}
    clauses: dict[tuple[str, str], tuple[str, ...]] = {}
    questions: dict[tuple[str, str], tuple[str, ...]] = {}
    topic = ""
    for line in filter(None, WORDING[part].splitlines()):
        head, _, rest = line.partition(" ")
        if head == "#":
            topic = rest
        elif head == "*":
            name, _, text = rest.partition(": ")
            extra[name] += text.split(" / ")
        else:
            mark, _, text = rest.partition(" ")
            (clauses if mark == ">" else questions)[topic, head] = tuple(text.split(" / "))
    attributes = {
        (name, key): Attribute(clauses[name, key], questions[name, key])
        for name, each in TOPICS.items()
        for key in each.kinds
    }
    joins = {name: tuple(extra[name]) for name in ("same", "other")}
    return Wording(joins, tuple(extra["intro"]), tuple(extra["aside"]), attributes)
