"""Wrong use of heads in a fit: one sentence that names the head and the way out, and nothing half-written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_runner import bertvision, tree
from fit_helpers import fixture_encoder as fixture_encoder
from fit_helpers import fixture_states as fixture_states
from fit_helpers import fixture_train as fixture_train
from fit_helpers import run_of
from torch import Tensor, nn

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, StateBatch, cost, head_names, parse_head, register
from bertvision.heads.costs import activation_bytes, rows_at_once
from bertvision.states.base import MemoryStates

BAD = {
    "label head": (("tenney_small",), r"tenney_small\.v1 gives logits of whole windows"),
    "mistyped": (("adaptr",), "there is no head 'adaptr': did you mean adapter"),
    "set with options": (("papers:lr=1",), "is a set of heads and takes no options"),
    "not for this encoder": (("cacnn:variant=ctx,maps=3",), "cacnn"),
    "rate of one of many": (("last_state", "adapter:lr=nan"), "head 'adapter:lr=nan': --lr must be above 0"),
    "patience without dev": (("adapter:patience=2",), "need --dev"),
    "huge size": (("adapter:size=99999999999999",), "size of adapter must lie between 1 and 1,000,000"),
    "huge width": (("cacnn:variant=ctx,bank=99999999999999999",), "bank of cacnn must be widths"),
    "endless memory": (("last_state", "--activation-gb", "inf"), "--activation-gb must be a finite number"),
    "states": (("last_state", "--states.memory-gb", "nan"), "--states.memory-gb must not be negative"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    case: str, tiny_bert: Path, toy_squad: Path, tmp_path: Path
) -> None:
    import re

    words, expected = BAD[case]
    out = tmp_path / "heads"
    done = bertvision(
        "fit", tiny_bert, "--train", toy_squad, "--max-seq-length", "96", "--out", out, "--heads", *words
    )
    assert done.code == 2
    said = re.sub(r"[│╭╰─╮╯\s]+", " ", done.err)
    assert re.search(expected, said), said
    assert "Traceback" not in said
    assert not out.exists() or tree(out) == {}


# ---- a user's own head that the meta device cannot run


@dataclass(frozen=True)
class CountingConfig:
    pass


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> type[Head]:
    from bertvision.heads import base

    head_names()  # what ships is registered
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))

    @register("counting.v1", CountingConfig)
    class Counting(Head):
        """Looks at values: how many tokens are real."""

        def __init__(self, config: CountingConfig, geometry: Geometry) -> None:
            super().__init__(config, geometry)
            self.project = nn.Linear(geometry.hidden, geometry.outputs)

        def forward(self, batch: StateBatch) -> Tensor:
            return self.project(batch.states[-1]) * (1 + 1 / int(batch.mask.sum()))

    return Counting


def test_a_head_that_looks_at_values_is_fitted_and_counted(counting: Any, states: MemoryStates) -> None:
    price = cost(parse_head("counting"), Geometry(3, 32))
    assert price.parameters == 66
    assert price.flops_per_token is None
    run = run_of(states, "counting")
    assert rows_at_once(run.fitted["counting.seed0"].head, 64, 4.0) > 10**6, "it reads a batch whole"
    before = run.fitted["counting.seed0"].head.state_dict()["project.weight"].clone()
    for batch in run.batches():
        run.train_batch(batch)
    assert not torch.equal(before, run.fitted["counting.seed0"].head.state_dict()["project.weight"])


def test_a_config_that_can_change_is_refused() -> None:
    @dataclass
    class Loose:
        size: int = 1

    with pytest.raises(ValueError, match="must be a dataclass with frozen=True"):
        register("loose.v1", Loose)(Head)


# ---- what memory is counted


def test_dropout_and_pair_scores_are_in_the_budget() -> None:
    geometry, tokens = Geometry(3, 32), 50
    plain, dropped = (parse_head(f"adapter:size=8{more}") for more in ("", ",dropout=0.5"))
    more = activation_bytes(dropped, geometry, tokens=tokens) - activation_bytes(
        plain, geometry, tokens=tokens
    )
    assert more >= 16 * 3 * tokens * 8, "drawing needs 16 bytes for each of L * T * a numbers"
    short, long = (activation_bytes(parse_head("biaffine:size=8"), geometry, tokens=n) for n in (50, 100))
    assert long - short > 3 * 4 * (100**2 - 50**2), "scores, softmax and gradient of each pair of tokens"


def test_a_geometry_a_head_cannot_have_is_told_before_the_fit() -> None:
    with pytest.raises(ConfigError, match="2 outputs"):
        parse_head("biaffine").build(Geometry(3, 32, outputs=3), seed=0)
