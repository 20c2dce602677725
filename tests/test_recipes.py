"""Every shipped recipe loads, and the command in its first line is a command."""

import shlex
from pathlib import Path

import pytest

from bertvision.cli import find_command
from bertvision.cli.flags import parse
from bertvision.config import from_mapping, read_yaml, recipe_path, recipes
from bertvision.encoder.policy import parse_policy
from bertvision.heads.base import head_class
from bertvision.heads.spec import find_row, parse_head
from bertvision.pipeline.config import RunArgs
from bertvision.tasks.label_score import LabelTask
from bertvision.tasks.span import SPAN
from bertvision.train.space import read_space
from bertvision.train.zoo import zoo_members


def test_there_are_recipes() -> None:
    assert {"demo", "squad", "bertvision", "hulburd", "glue", "answerable", "qabert"} <= recipes().keys()


@pytest.mark.parametrize("name", recipes())
def test_recipe_loads_and_its_command_parses(name: str) -> None:
    path = recipe_path(name)
    first, second, *_ = path.read_text(encoding="utf-8").splitlines()
    assert first.startswith("# bertvision ")
    assert second.startswith("# "), "the second line says what it is for"
    program, verb, *flags = shlex.split(first.removeprefix("# "))
    assert program == "bertvision"
    args, _ = parse(*find_command([verb, *flags]))
    config = from_mapping(type(args), read_yaml(path), source=str(path))
    # The command starts from this very recipe; it may name only the encoder and the data anew.
    for part in (
        "out",
        "tasks",
        "windows",
        "text",
        "decode",
        "finetune",
        "fit",
        "states",
        "compare",
        "space",
        "search",
    ):
        assert getattr(args, part, None) == getattr(config, part, None), part
    if verb == "multitask":
        assert config.tasks
        assert all(task.train and task.dev and parse_head(task.head) for task in config.tasks)
        return
    assert config.train
    assert config.dev
    if isinstance(config, RunArgs):
        texts = config.train.startswith(("glue:", "answerable:"))
        assert zoo_members(config.fit, LabelTask(("a", "b")) if texts else SPAN)
    elif verb == "finetune":
        assert [str(parse_policy(text)) for text in config.compare] == list(config.compare)
    elif verb == "sweep":
        assert read_space(config.fit.heads, config.space).of(config.fit.heads[0])
    else:
        pytest.fail(f"no test knows the recipes of {verb}")


def test_answerable_has_the_papers_six_models_on_cls_states_alone() -> None:
    """Six models, Adam 1e-3, batches of 64, ten epochs; nothing but [CLS] has to be kept in memory."""
    config = from_mapping(RunArgs, read_yaml(recipe_path("answerable")), source="answerable")
    specs = [spec for _, spec, _ in zoo_members(config.fit, LabelTask(("answer", "no answer")))]
    rows = [row for spec in specs if (row := find_row(spec)) and row.section.startswith("4 ")]
    assert len(rows) == 6
    assert all(head_class(spec.name).cls_only for spec in specs)
    fit = config.fit
    assert (fit.lr, fit.batch_size, fit.epochs, fit.weight_decay) == (1e-3, 64, 10, 0.0)
    assert config.states.source == "memory"


def test_the_papers_recipe_and_a_good_one_differ_where_they_should() -> None:
    """Constant 1e-5 and batches of 4 against a decayed rate with warm-up; BERT's own AdamW for Hulburd."""
    paper = read_yaml(recipe_path("bertvision"))["finetune"]
    good = read_yaml(recipe_path("squad"))["finetune"]
    assert (paper["lr"], paper["batch_size"], paper["schedule"]) == (1e-5, 4, "constant")
    assert (good["schedule"], good["warmup"] > 0, good["batch_size"] > 4) == ("linear", True, True)
    assert read_yaml(recipe_path("hulburd"))["finetune"]["bias_correction"] is False


def test_a_file_stands_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").write_text("encoder: mine\n", encoding="utf-8")
    assert read_yaml(recipe_path("demo")) == {"encoder": "mine"}
