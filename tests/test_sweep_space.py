"""What a sweep varies: recipes and flags say the same, grids are what they should be, mistakes cost no trial."""

import itertools
from typing import Any

import pytest

from bertvision.errors import ConfigError
from bertvision.heads import parse_head
from bertvision.train.space import Range, read_space


def test_a_flag_says_what_a_recipe_says_and_overrides_it() -> None:
    recipe: dict[str, Any] = {
        "lr": {"low": "1e-4", "high": 1e-2, "log": True},  # YAML reads 1e-4 as a text
        "dropout": {"low": 0, "high": 0.3, "step": 0.1},
        "size": {"choices": [64, 386]},
        "skip": {"choices": [True, False]},
        "weight_decay": {"low": 0, "high": 1, "points": 3},
    }
    flags = ["lr=1e-4..1e-2:log", "dropout=0..0.3:step=0.1", "size=64,386", "skip=true,false"]
    flags.append("weight-decay=0..1:points=3")
    space = read_space(["adapter"], recipe)
    assert space == read_space(["adapter"], {}, flags) == read_space(["adapter"], space.to_mapping())
    space = read_space(["adapter"], {"size": [1, 2], "lr": [1e-3, 1e-2]}, ["size=8,16"])
    assert [candidate.head for candidate in space.grid()] == [
        f"adapter:size={size},lr={lr}" for size, lr in itertools.product((8, 16), (0.001, 0.01))
    ]


def test_a_grid_is_every_combination_of_what_each_head_knows() -> None:
    varied: dict[str, Any] = {"size": [4, 8], "lr": {"low": 1e-4, "high": 1e-2, "log": True, "points": 3}}
    found = read_space(["adapter:skip", "learned_pooling"], varied).grid()
    rates = ("0.0001", "0.001", "0.01")
    assert [candidate.head for candidate in found] == [
        *(f"adapter:skip,size={size},lr={lr}" for size, lr in itertools.product((4, 8), rates)),
        *(f"learned_pooling:lr={lr}" for lr in rates),
    ]
    first = parse_head(found[0].head)
    assert (first.config.size, first.config.skip, first.train.lr) == (4, True, 1e-4)
    assert found[0].values == {"head": "adapter:skip", "size": 4, "lr": 1e-4}


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        (Range(0, 0.3, step=0.1), (0.0, 0.1, 0.2, 0.3)),
        (Range(0, 0.35, step=0.1), (0.0, 0.1, 0.2, 0.3)),
        (Range(1, 16, log=True, points=5, whole=True), (1, 2, 4, 8, 16)),
        (Range(1, 3, points=5, whole=True), (1, 2, 3)),
        (Range(0.1234567, 1, points=1), (0.1235,)),
        (Range(0.12346, 0.12349, points=2), (0.12346, 0.12349)),  # four digits would leave the range
    ],
)
def test_values_of_a_range_in_a_grid(dimension: Range, values: tuple[float, ...]) -> None:
    assert dimension.grid == values


def test_whole_numbers_stay_so_and_the_batch_size_belongs_to_the_fit() -> None:
    space = read_space(["adapter"], {"size": {"low": 4, "high": 64, "log": True}})
    assert space.candidate("adapter", {"size": 12.7}).head == "adapter:size=13"
    assert type(space.candidate("adapter", {"size": 99}).values["size"]) is int
    candidate = read_space(["adapter"], {"batch_size": [8, 16], "size": [4]}).candidate(
        "adapter", {"batch_size": 8, "size": 4}
    )
    assert (candidate.head, candidate.batch_size) == ("adapter:size=4", 8)


@pytest.mark.parametrize(
    ("heads", "flags", "sentence"),
    [
        ("adapter", ["sise=1,2"], "no head of the sweep has an option 'sise': did you mean size"),
        ("adapter", ["size"], "--vary size is no space"),
        ("adapter", ["size=0.5..64"], "space size: .*whole number"),
        ("adapter", ["lr=1e-2..1e-4"], "space lr: .*low 0.01 must be below high"),
        ("adapter", ["lr=0..1:log"], "log needs a low above 0"),
        ("adapter", ["lr=0..1:step=0.1:points=3"], "a step or points, not both"),
        ("adapter", ["size=4,4"], "space size names a choice twice"),
        ("adapter", ["skip=yes,no"], "skip of head 'adapter:skip=yes' must be a bool"),
        ("adapter", ["size=0,4"], "size of adapter"),
        ("adapter", ["batch_size=0,4"], "0 is no number of windows"),
        ("adapter", ["seed=0,1"], "no head of the sweep has an option 'seed'"),
        ("adapter:size=4", ["size=4,8"], "sets size twice"),
        ("each_layer", ["lr=1e-3,1e-2"], "--heads each_layer stands for readers of all hidden states"),
        ("cls_linear", ["lr=1e-3,1e-2"], "use one of"),
    ],
)
def test_mistakes_are_reported_before_any_trial(heads: str, flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_space([heads], {}, flags)


def test_what_a_grid_or_an_optimiser_cannot_take_is_refused() -> None:
    assert read_space(["default"], {"lr": [1e-3, 1e-2]}, unit="window").heads
    with pytest.raises(ConfigError, match="leave batch_size out of the space"):
        read_space(["adapter"], {"batch_size": [8, 16]}).grid()
    with pytest.raises(ConfigError, match=r"space lr: .*give it choices, a step or points"):
        read_space(["adapter"], {"lr": {"low": 1e-4, "high": 1e-2}}).grid()
