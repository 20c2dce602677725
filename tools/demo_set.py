"""Make the demo set: passages and questions from a seed, and from the words in demo_wording.json.

    python tools/demo_set.py     write src/bertvision/data/demo/{train,dev,test}.json

A passage compares two things of one topic. It states some attributes of both, some of one only and leaves some out; an
aside adds further people, places and years. A clause may say "it" for the thing the clause before was about, so the
name of the thing and the answer often stand in two sentences.

Questions without an answer are near misses:
    other     the attribute is stated, but only of the other thing
    unstated  the attribute is stated of neither; a value of the same kind stands in the passage
    stranger  the thing is one of another passage; the attribute is stated of one that is there

What may be said (demo_wording.json):
    topics  TOPIC: noun, plural, called ({} = the thing's own name), kinds (attribute -> kind of its value)
    parts   PART: words (kind -> words), joins, intros ({X}, {Y} of the kind {P}), asides,
            topics (TOPIC: ATTRIBUTE: clauses that state the value {A} of the thing {S}, questions about it)

No two parts share a name, a sentence form or a question template. {S} in a clause may become "it", so no form may
need a genitive or a plural of it. Invented names are two word pieces long for an uncased BERT vocabulary and given
names are one, so a full name has two to four pieces and the encoder knows none of them.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from bertvision.data.demo import FOLDER, stems
from bertvision.data.examples import Answer, Example, SpanData, write_squad

SIZES = {"train": (450, (1, 1, 1, 1, 2)), "dev": (200, (2, 1, 2, 1, 2)), "test": (200, (2, 1, 2, 1, 2))}
"""Part -> number of passages of four questions each, and how many of the four have no answer, in turn."""
QUESTIONS = 4
DISTINCT = 0.7
"""Share of passages about two different kinds of a topic, such as a violin and a harp."""

_NUMBERS = {"year": (1640, 1990), "count": (30, 990), "money": (20, 990)}
_UNITS = {"metres": (60, 940), "days": (20, 480), "years": (11, 290), "minutes": (15, 95)}


# ---- what may be said


@dataclass(frozen=True)
class Topic:
    """A kind of thing a passage compares two of."""

    noun: str
    plural: str
    called: list[str]
    """What such a thing is called; {} is its own name."""
    kinds: dict[str, str]
    """Attribute -> kind of its value."""


@dataclass(frozen=True)
class Attribute:
    clauses: list[str]
    questions: list[str]


@dataclass(frozen=True)
class Wording:
    """Everything one part may say."""

    words: dict[str, list[str]]
    """Kind of word -> the words of this part."""
    joins: dict[str, list[str]]
    """What joins two clauses about the `same` thing, or about two things (`other`)."""
    intros: list[str]
    asides: list[str]
    attributes: dict[tuple[str, str], Attribute]
    """By (topic, attribute)."""


@cache
def _content() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("demo_wording.json").read_text(encoding="utf-8"))


@cache
def read_topics() -> dict[str, Topic]:
    return {name: Topic(**topic) for name, topic in _content()["topics"].items()}


@cache
def read_wording(part: str) -> Wording:
    """The wording of one part: train, dev or test."""
    content = dict(_content()["parts"][part])
    topics = content.pop("topics")
    attributes = {
        (name, key): Attribute(**topics[name][key])
        for name, topic in read_topics().items()
        for key in topic.kinds
    }
    return Wording(**content, attributes=attributes)


# ---- what is said


@dataclass(frozen=True)
class Fact:
    thing: int
    attribute: str
    value: str


@dataclass(frozen=True)
class Question:
    text: str
    template: str
    answers: tuple[Answer, ...]
    reason: str = ""
    """Why there is no answer: other, unstated, stranger; empty when there is one."""


@dataclass
class Passage:
    topic: str
    things: tuple[str, str]
    facts: list[Fact]
    text: str = ""
    starts: dict[tuple[int, str], int] = field(default_factory=dict)
    """Where the value of (thing, attribute) stands in the text."""
    forms: list[str] = field(default_factory=list)
    """Sentence forms, {S} and {A} standing for the thing and the value."""
    names: list[str] = field(default_factory=list)
    """Every name in the text: the things, people, places, organisations."""
    questions: list[Question] = field(default_factory=list)

    @property
    def title(self) -> str:
        return " and ".join(thing.removeprefix("the ") for thing in self.things)

    @property
    def about(self) -> Topic:
        return read_topics()[self.topic]


def passages(part: str, *, seed: int = 0) -> list[Passage]:
    """All passages of a part with their questions."""
    # The first draw of test was looked at while difficulty and recipe were chosen; this second one was made when the
    # difficulty was settled (README, "How the recipe was chosen").
    draw = f"{seed} second draw" if part == "test" else str(seed)
    return _Generator(part, random.Random(f"bertvision demo {part} {draw}")).passages()


class _Generator:
    """Makes one part; everything it draws comes from `rng`."""

    def __init__(self, part: str, rng: random.Random) -> None:
        self.wording, self.rng = read_wording(part), rng
        self.number, self.without_answer = SIZES[part]
        self.used: set[str] = set()
        """Values and names of the current passage."""

    def passages(self) -> list[Passage]:
        made: list[Passage] = []
        for topic in self._rota():
            made.append(self._facts(topic))
            self._write(made[-1])
        for i, passage in enumerate(made):
            near = [t for p in made if p.topic == passage.topic for t in p.things if t not in passage.names]
            stranger = self.rng.choice(near)
            self._ask(passage, self.without_answer[i % len(self.without_answer)], stranger)
        return made

    def _rota(self) -> Iterator[str]:
        """Topics, all equally often, in shuffled rounds."""
        names = list(read_topics())
        for i in range(self.number):
            if i % len(names) == 0:
                self.rng.shuffle(names)
            yield names[i % len(names)]

    def _draw(self, kind: str) -> str:
        """A value of this kind that the passage does not hold yet."""
        while True:
            value = self._value(kind)
            # Whole values and each capitalised word: two people of one passage share no surname either.
            parts = {value, *(w for w in value.split() if w[0].isupper())}
            if not parts & self.used:
                self.used |= parts
                return value

    def _value(self, kind: str) -> str:
        rng, words = self.rng, self.wording.words
        if kind in _NUMBERS:
            number = str(rng.randrange(*_NUMBERS[kind]))
            return f"{number} {rng.choice(words['money'])}" if kind == "money" else number
        if kind in _UNITS:
            return f"{rng.randrange(*_UNITS[kind])} {kind}"
        kinds = {"person": ("given", "surname"), "org": ("place", "body")}.get(kind, (kind,))
        return " ".join(rng.choice(words[one]) for one in kinds)

    def _facts(self, topic: str) -> Passage:
        """Two things of a topic and what the passage will state of them."""
        rng, about = self.rng, read_topics()[topic]
        keys = rng.sample(list(about.kinds), len(about.kinds))
        # One or two attributes of both, two or three of only one of them, the rest unstated.
        both, single = rng.choice(((1, 2), (2, 2), (1, 3)))
        stated = [(thing, key) for key in keys[:both] for thing in (0, 1)]
        first = rng.randrange(2)
        stated += [((first + i) % 2, key) for i, key in enumerate(keys[both : both + single])]
        self.used.clear()
        # Things of one kind are told apart by their names alone.
        one, two = rng.sample(about.called, 2) if rng.random() < DISTINCT else [rng.choice(about.called)] * 2
        things = (one.format(self._draw("stem")), two.format(self._draw("stem")))
        return Passage(
            topic, things, [Fact(thing, key, self._draw(about.kinds[key])) for thing, key in stated]
        )

    def _write(self, p: Passage) -> None:
        """Compose the text; remember forms, names and where each value stands."""
        rng = self.rng
        p.names += p.things
        facts = list(p.facts)
        if rng.random() < 0.5:
            facts.sort(key=lambda f: f.thing)  # first all of one thing, then all of the other
        else:
            rng.shuffle(facts)
        spare = 6 - len(facts)  # an intro and an aside both would make seven facts too long
        if rng.random() < 0.35:
            form = rng.choice(self.wording.intros)
            p.forms.append(form)
            first, second = rng.sample(p.things, 2)
            p.text = _sentence_case(form.format(X=first, Y=second, P=p.about.plural))
        aside = rng.randrange(len(facts) + 1) if not p.text or (spare > 1 and rng.random() < 0.5) else -1
        spoken_of = -1
        while facts:
            if len(p.facts) - len(facts) >= aside >= 0:
                self._aside(p)
                aside, spoken_of = -1, -1
            take = 2 if len(facts) > 1 and rng.random() < 0.4 else 1
            spoken_of = self._sentence(p, facts[:take], spoken_of)
            facts = facts[take:]
        if aside >= 0:
            self._aside(p)

    def _sentence(self, p: Passage, facts: list[Fact], spoken_of: int) -> int:
        """Append one sentence of one or two clauses; return the thing "it" may mean next, -1 for none."""
        rng = self.rng
        one_thing = len({fact.thing for fact in facts}) == 1
        join = rng.choice(self.wording.joins["same" if one_thing else "other"])
        text = p.text + " " if p.text else ""
        begin = len(text)
        for i, fact in enumerate(facts):
            form = rng.choice(self.wording.attributes[p.topic, fact.attribute].clauses)
            p.forms.append(form)
            if i:
                text += join + " "
            again = fact.thing == spoken_of and rng.random() < 0.4
            thing = rng.choice(("it", f"this {p.about.noun}")) if again else p.things[fact.thing]
            before, after = form.replace("{S}", thing).split("{A}")
            p.starts[fact.thing, fact.attribute] = len(text + before)
            text += before + fact.value + after
            if p.about.kinds[fact.attribute] in ("person", "place", "org", "stem"):
                p.names.append(fact.value)
            spoken_of = fact.thing
        p.text = text[:begin] + _sentence_case(text[begin:])
        return spoken_of if one_thing else -1

    def _aside(self, p: Passage) -> None:
        """Append a sentence that no question asks about."""
        form = self.rng.choice(self.wording.asides)
        text = form.replace("{S}", self.rng.choice(p.things))
        for kind in ("person", "place", "org", "year"):
            while f"{{{kind}}}" in text:
                value = self._draw(kind)
                text = text.replace(f"{{{kind}}}", value, 1)
                if kind != "year":
                    p.names.append(value)
        p.text += (" " if p.text else "") + _sentence_case(text)
        p.forms.append(form)

    def _ask(self, p: Passage, without: int, stranger: str) -> None:
        """Fill in the questions: `without` near misses, the rest answerable."""
        rng, kinds = self.rng, p.about.kinds
        stated = {(f.thing, f.attribute): f.value for f in p.facts}
        present = {kinds[key] for _, key in stated}
        unstated = [
            key for key in kinds if kinds[key] in present and not {(0, key), (1, key)} & stated.keys()
        ]
        misses = {
            "other": [(p.things[1 - thing], key) for thing, key in stated if (1 - thing, key) not in stated],
            "unstated": [(p.things[thing], key) for key in unstated for thing in (0, 1)],
            "stranger": [(stranger, key) for _, key in stated],
        }
        chosen: list[tuple[str, str, str]] = []
        while len(chosen) < without:
            (reason,) = rng.choices(list(misses), (5, 3, 2))
            if misses[reason]:
                miss = rng.choice(misses[reason])
                if (reason, *miss) not in chosen:
                    chosen.append((reason, *miss))
        chosen += [("", p.things[thing], key) for thing, key in rng.sample(list(stated), QUESTIONS - without)]
        rng.shuffle(chosen)
        for reason, thing, key in chosen:
            template = self._far_template(self.wording.attributes[p.topic, key], p.forms)
            answers: tuple[Answer, ...] = ()
            if not reason:
                place = p.things.index(thing), key
                start = p.starts[place]
                # Read from the text: a value that opens a sentence is capitalised there.
                answers = (Answer(p.text[start : start + len(stated[place])], start),)
            p.questions.append(Question(template.format(S=thing), template, answers, reason))

    def _far_template(self, attribute: Attribute, forms: list[str]) -> str:
        """A question for the attribute that shares as few words as possible with the clauses of the passage."""
        said = {stem for form in attribute.clauses if form in forms for stem in stems(form)}
        templates = self.rng.sample(attribute.questions, len(attribute.questions))
        return min(templates, key=lambda template: len(said & set(stems(template))))


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:] + "."


# ---- files


def write_part(part: str, path: Path) -> None:
    """Write one part as a SQuAD file with a passage on each line."""
    made = passages(part)
    examples = [
        Example(f"demo-{part}-{i:03d}-{j}", q.text, i, q.answers, passage.title)
        for i, passage in enumerate(made)
        for j, q in enumerate(passage.questions)
    ]
    write_squad(SpanData([passage.text for passage in made], examples), path)
    lines = ",\n".join(
        json.dumps(article) for article in json.loads(path.read_text(encoding="utf-8"))["data"]
    )
    path.write_text(f'{{"version": "v2.0", "data": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    for part in SIZES:
        write_part(part, FOLDER / f"{part}.json")
