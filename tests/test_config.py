"""Settings: recipes into dataclasses and back, flags over recipes."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from bertvision.cli import find_command
from bertvision.cli.flags import parse
from bertvision.config import dump_yaml, from_mapping, read_yaml, to_mapping
from bertvision.errors import ConfigError
from bertvision.pipeline.config import FinetuneArgs, FitArgs, RunArgs


def flags(words: str) -> object:
    return parse(*find_command(words.split()))[0]


def test_a_dumped_config_is_a_recipe_for_the_same_settings(tmp_path: Path) -> None:
    config = flags(
        "run --encoder some/where --train a.json --dev b.json --out runs/x --max-train-examples 7 --seed 3 "
        "--finetune.lr 5e-5 --finetune.snapshots 0.3,1.0 --fit.heads adapter:size=64,skip last_state "
        "--fit.seeds 0,1,2 --merging any_null --no-max-context --stride overlap --states.memory-gb 0",
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config, heading="bertvision run\nagain"), encoding="utf-8")
    assert path.read_text(encoding="utf-8").startswith("# bertvision run\n# again\n")
    assert from_mapping(RunArgs, read_yaml(path), source="it") == config
    assert flags(f"run --config {path}") == config


def test_flags_stand_above_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump({
            "encoder": "recipe", "train": "t.json", "dev": "d.json",
            "finetune": {"lr": 1e-4, "epochs": 2}, "fit": {"heads": ["adapter"]},
        }),
        encoding="utf-8",
    )  # fmt: skip
    config = flags(f"run --finetune.lr 3e-5 --config={path} --encoder flag --fit.heads last_state")
    assert isinstance(config, RunArgs)
    assert (config.encoder, config.train, config.dev) == ("flag", "t.json", "d.json")
    assert (config.finetune.lr, config.finetune.epochs, config.finetune.batch_size) == (3e-5, 2.0, 16)
    assert config.fit.heads == ("last_state",)


def test_without_data_the_demo_is_the_recipe() -> None:
    demo, own = flags("run --encoder mine"), flags("run --train=a.json --dev b.json")
    assert isinstance(demo, RunArgs)
    assert isinstance(own, RunArgs)
    assert (demo.train, demo.encoder, demo.out) == ("demo:train", "mine", Path("runs/demo"))
    assert own == dataclasses.replace(RunArgs(), train="a.json", dev="b.json")


@pytest.mark.parametrize(
    "words", ["--snapshots 0.3,1.0", "--snapshots 0.3 1.0", "--snapshots=0.3,1.0", "--snapshots 0.3, 1.0"]
)
def test_numbers_are_listed_with_commas_or_spaces(words: str) -> None:
    args = flags(f"finetune --train a --out b {words}")
    assert isinstance(args, FinetuneArgs)
    assert args.finetune.snapshots == (0.3, 1.0)


@pytest.mark.parametrize(
    ("words", "heads"),
    [
        ("a b", ("a", "b")),
        ("a,b", ("a", "b")),
        ("a:x=1,y", ("a:x=1,y",)),
        ("a,b:x=1,y c", ("a", "b:x=1,y", "c")),
    ],
)
def test_a_comma_separates_heads_only_before_their_options(words: str, heads: tuple[str, ...]) -> None:
    args = flags(f"fit enc --train a --out b --heads {words}")
    assert isinstance(args, FitArgs)
    assert args.fit.heads == heads
    joined = flags(f"fit enc --train a --out b --heads={words.replace(' ', ' ')}")
    assert joined == args


def test_underscores_are_as_good_as_dashes() -> None:
    args = flags("finetune --train a --out b --max_seq_length 96 --doc_stride 32 --batch_size 4")
    assert args == flags("finetune --train a --out b --max-seq-length 96 --doc-stride 32 --batch-size 4")


def test_seed_is_handed_down() -> None:
    config = dataclasses.replace(RunArgs(), seed=5).seeded()
    assert (config.finetune.seed, config.fit.seed) == (5, 5)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"encoder": 5}, "sets encoder to 5: it must be a text"),
        ({"out": 5}, "sets out to 5: it must be a path"),
        ({"overwrite": "yes"}, "sets overwrite to 'yes': it must be true or false"),
        ({"overwrite": 1}, "it must be true or false"),
        ({"max_train_examples": True}, "sets max_train_examples to True: it must be a whole number"),
        ({"max_train_examples": 2.5}, "it must be a whole number"),
        ({"combine": "sum"}, "it must be auto or max or mean or product"),
        ({"fit": {"heads": "adapter"}}, "sets fit.heads to 'adapter': it must be a list, each item a text"),
        ({"fit": {"seeds": [0, "one"]}}, "sets fit.seeds to 'one': it must be a whole number"),
        ({"finetune": {"lr": "fast"}}, "sets finetune.lr to 'fast': it must be a number"),
        ({"windows": {"length": 3}}, "sets windows.length, which does not exist"),
    ],
)
def test_a_wrong_value_is_told_with_its_name(values: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(RunArgs, values, source="it")
    assert str(caught.value).startswith("it sets")
    assert told in str(caught.value)


def test_what_yaml_makes_of_numbers_and_names_is_accepted() -> None:
    # YAML 1.1 reads 5e-5 as a string, and an integer where a float is meant.
    config = from_mapping(
        RunArgs,
        {"max-train-examples": 3, "finetune": {"lr": "5e-5", "epochs": 1}, "seed": None},
        source="it",
    )
    assert (config.max_train_examples, config.finetune.lr, config.finetune.epochs) == (3, 5e-5, 1.0)
    assert from_mapping(RunArgs, to_mapping(config), source="it") == config
