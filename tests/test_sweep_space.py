"""What a sweep varies: recipes and flags say the same, grids are what they should be, mistakes cost no trial."""

import itertools
from typing import Any

import pytest

from bertvision.errors import ConfigError
from bertvision.heads import parse_head
from bertvision.train.fit import FitConfig
from bertvision.train.sweep import check_space
from bertvision.train.sweep_space import Range, read_space


def test_a_flag_says_what_a_recipe_says() -> None:
    recipe: dict[str, Any] = {
        "lr": {"low": "1e-4", "high": 1e-2, "log": True},  # YAML reads 1e-4 as a text
        "dropout": {"low": 0, "high": 0.3, "step": 0.1},
        "size": {"choices": [64, 386]},
        "skip": {"choices": [True, False]},
        "weight_decay": {"low": 0, "high": 1, "points": 3},
    }
    flags = ["lr=1e-4..1e-2:log", "dropout=0..0.3:step=0.1", "size=64,386", "skip=true,false"]
    flags.append("weight-decay=0..1:points=3")
    assert read_space(["adapter"], recipe) == read_space(["adapter"], {}, flags)
    assert read_space(["adapter"], read_space(["adapter"], recipe).to_mapping()) == read_space(
        ["adapter"], recipe
    )


def test_a_flag_stands_over_the_recipe() -> None:
    space = read_space(["adapter"], {"size": [1, 2], "lr": [1e-3, 1e-2]}, ["size=8,16"])
    assert [candidate.head for candidate in space.grid()] == [
        f"adapter:size={size},lr={lr}" for size, lr in itertools.product((8, 16), (0.001, 0.01))
    ]


def test_a_grid_is_every_combination_of_what_each_head_knows() -> None:
    space = read_space(
        ["adapter:skip", "learned_pooling"],
        {"size": [4, 8], "lr": {"low": 1e-4, "high": 1e-2, "log": True, "points": 3}},
    )
    rates = ("0.0001", "0.001", "0.01")
    assert [candidate.head for candidate in space.grid()] == [
        *(f"adapter:skip,size={size},lr={lr}" for size, lr in itertools.product((4, 8), rates)),
        *(f"learned_pooling:lr={lr}" for lr in rates),
    ]
    first = parse_head(space.grid()[0].head)
    assert (first.config.size, first.config.skip, first.train.lr) == (4, True, 1e-4)
    assert space.grid()[0].values == {"head": "adapter:skip", "size": 4, "lr": 1e-4}


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
    assert dimension.grid("x") == values


def test_options_that_are_whole_numbers_stay_so() -> None:
    space = read_space(["adapter"], {"size": {"low": 4, "high": 64, "log": True}})
    assert space.candidate("adapter", {"size": 12.7}).head == "adapter:size=13"
    with pytest.raises(ConfigError, match="size is a whole number"):
        read_space(["adapter"], {"size": {"low": 0.5, "high": 64}})


def test_the_batch_size_belongs_to_the_fit() -> None:
    space = read_space(["adapter"], {"batch_size": [8, 16], "size": [4]})
    candidate = space.candidate("adapter", {"batch_size": 8, "size": 4})
    assert (candidate.head, candidate.batch_size) == ("adapter:size=4", 8)
    with pytest.raises(ConfigError, match="leave batch_size out of the space"):
        space.grid()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "nothing is varied"),
        (["sise=1,2"], r"no head of the sweep has an option 'sise': did you mean size"),
        (["size"], "--vary size is no space"),
        (["size=4..x"], "space size: high must be a number, not 'x'"),
        (["lr=1e-2..1e-4"], "low 0.01 must lie below high 0.0001"),
        (["lr=0..1:log"], "log needs a low above 0"),
        (["lr=1e-3..1:lgo"], r"space lr has no setting 'lgo': did you mean low or log"),
        (["lr=0..1:step=0.1:points=3"], "a step or points, not both"),
        (["size=4,4"], "space size names a choice twice"),
        (["skip=yes,no"], "skip of head 'adapter:skip=yes' must be a bool"),
        (["gelu=tanh,relu"], "gelu of head .* must be one of tanh, erf"),
        (["size=0,4"], "size of adapter"),
        (["batch_size=0,4"], "0 is no number of windows"),
        (["seed=0,1"], "no head of the sweep has an option 'seed'"),
    ],
)
def test_mistakes_are_told_before_any_trial(flags: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_space(["adapter"], {}, flags)


def test_values_no_optimiser_takes_are_refused() -> None:
    with pytest.raises(ConfigError, match="warmup is a part of all steps"):
        check_space(read_space(["adapter"], {"warmup": {"low": 0, "high": 1}}), FitConfig())


def test_what_a_head_sets_cannot_be_varied() -> None:
    with pytest.raises(ConfigError, match="sets size, which the space varies"):
        read_space(["adapter:size=4"], {"size": [4, 8]})


def test_a_grid_needs_values() -> None:
    with pytest.raises(ConfigError, match="give it choices, a step or points"):
        read_space(["adapter"], {"lr": {"low": 1e-4, "high": 1e-2}}).grid()


def test_heads_of_another_task_are_refused() -> None:
    with pytest.raises(ConfigError, match="use one of"):
        read_space(["adapter"], {"size": [4, 8]}, unit="window")
    assert read_space(["default"], {"lr": [1e-3, 1e-2]}, unit="window").heads


def test_readers_of_all_layers_are_nothing_to_search() -> None:
    with pytest.raises(ConfigError, match="--heads each_layer stands for readers of all hidden states"):
        read_space(["adapter", "each_layer"], {"lr": [1e-3, 1e-2]})
