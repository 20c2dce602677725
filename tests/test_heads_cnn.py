"""Convolutional heads: exact sizes, and references that add up one kernel tap at a time, window by window.

A reference never sees a pad: it gets every window cut to its real tokens. Where a head agrees with it, pads
neither reach a real token nor enter a statistic.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_reference import reference, shake
from torch import Tensor
from torch.nn import functional as F

from bertvision.errors import ConfigError
from bertvision.heads import Geometry, Head, conv, cost, load_head, parse_head, save_head
from bertvision.heads.conv import BatchNorm

LARGE = Geometry(states=25, hidden=1024)
"""BERT-large: the geometry of the published counts."""
LABELS = Geometry(states=25, hidden=1024, task="label", pooled=True)
SMALL = Geometry(states=3, hidden=12)
SMALL_LABEL = Geometry(states=3, hidden=21, outputs=3, task="label", pooled=True)

CNNS = ["cnn:dropout=0.1", "cnn:dilated", "cnn:input=learned,skip=false", "cnn:input=average",
        "cnn:input=learned,adapter=5,gelu=erf", "cnn:kernel=nxn,input=learned,adapter=6,skip=false",
        "cnn:kernel=nxn,dilated"]  # fmt: skip
INCEPTIONS = ["inception:adapter=4", "inception:adapter=3,axis=tokens"]
XCEPTIONS = ["xception_mod:adapter=7"]
LABEL_HEADS = ["xception_abbr", "xception_abbr:cls,order=last", "xception:pool=max"]
SMALL_SPECS = [*CNNS, *INCEPTIONS, *XCEPTIONS, *LABEL_HEADS]


def geometry_of(text: str) -> Geometry:
    return SMALL_LABEL if text in LABEL_HEADS else SMALL


def inputs(geometry: Geometry, *, lengths: tuple[int, ...] = (4, 2), tokens: int = 4) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(geometry.states, len(lengths), tokens, geometry.hidden, generator=generator)
    mask = torch.arange(tokens) < torch.tensor(lengths)[:, None]
    given: dict[str, Any] = {"states": states, "mask": mask}
    if geometry.task != "span":
        pooled = torch.randn(len(lengths), geometry.hidden, generator=generator)
        given["pooled"] = pooled if geometry.pooled else None
    return given


def shaken(text: str, geometry: Geometry | None = None) -> Any:
    head = parse_head(text).build(geometry or geometry_of(text), seed=0).eval()
    shake(head)
    return head


# ---- the papers' numbers


@pytest.mark.parametrize(
    ("text", "total", "percent"),
    [
        ("cnn", 332_450, 0.099),
        ("cnn:dilated", 406_850, 0.121),
        ("cnn:dropout=0", 332_450, 0.099),
        ("cnn:input=learned", 313_276, 0.093),
        ("cnn:input=average", 313_250, 0.093),
        ("cnn:input=learned,adapter=386", 693_326, 0.207),
        ("cnn:kernel=nxn,input=learned,adapter=386,skip=false", 1_113_078, 0.332),
        ("inception", 6_681_422, 1.994),
        ("xception_mod", 6_602_478, 1.970),
    ],
)
def test_published_sizes_of_span_heads(text: str, total: int, percent: float) -> None:
    counted = cost(parse_head(text), LARGE, tokens=2).total
    assert counted == total
    assert round(100 * counted / 335_143_938, 3) == percent


@pytest.mark.parametrize(
    ("text", "trainable", "total"),
    [
        ("xception_abbr", 264_066, 267_010),
        ("xception_abbr:cls", 266_114, 269_058),
        ("xception", 20_662_106, 20_716_634),
        ("xception:pool=max", 20_662_106, 20_716_634),
    ],
)
def test_published_sizes_of_label_heads(text: str, trainable: int, total: int) -> None:
    counted = cost(parse_head(text), LABELS, tokens=2)
    assert (counted.parameters, counted.total) == (trainable, total)


def test_the_strided_axis_changes_the_output_layer_alone() -> None:
    features = parse_head("inception:adapter=5").build(SMALL, seed=0).state_dict()
    tokens = parse_head("inception:adapter=5,axis=tokens").build(SMALL, seed=0).state_dict()
    assert features.keys() == tokens.keys()
    same = [name for name in features if not name.startswith("project.weight")]
    assert all(torch.equal(features[name], tokens[name]) for name in same)
    assert (features["project.weight"].shape, tokens["project.weight"].shape) == ((2, 1024), (2, 5 * 1024))


# ---- every head from its formula


def real(logits: Tensor, given: dict[str, Any]) -> Tensor:
    return logits[given["mask"]] if logits.ndim == 3 else logits


def doubled(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v is not None and v.is_floating_point() else v for k, v in given.items()}


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_head_is_its_formula(text: str) -> None:
    head = shaken(text).double()
    given = doubled(inputs(geometry_of(text)))
    with torch.no_grad():
        expected, logits = reference(head, given), real(head(**given), given)
    assert expected.std() > 1e-3
    assert torch.allclose(logits, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "text",
    ["cnn:dropout=0", "cnn:kernel=nxn,input=learned,adapter=6,dropout=0", "cnn:dilated,dropout=0", *XCEPTIONS,
     *LABEL_HEADS],
)  # fmt: skip
def test_a_training_step_is_its_formula(text: str) -> None:
    """Batch statistics are those of real tokens alone, and so is what is remembered of them."""
    head = shaken(text).double().train()
    for module in head.modules():
        if isinstance(module, BatchNorm):
            module.steps.fill_(3)
    given = doubled(inputs(geometry_of(text), lengths=(4, 2, 3)))
    before = {name: buffer.clone() for name, buffer in head.named_buffers()}
    with torch.no_grad():
        expected, logits = reference(head, given), real(head(**given), given)
    assert torch.allclose(logits, expected, rtol=1e-7, atol=1e-7)
    for name, module in head.named_modules():
        if isinstance(module, BatchNorm):
            for i, kind in enumerate(("running_mean", "running_var")):
                now = 0.75 * before[f"{name}.{kind}"] + 0.25 * module.seen[i]  # type: ignore[index]
                assert torch.allclose(getattr(module, kind), now, rtol=1e-7, atol=1e-9), name
            assert module.steps == 4


def test_fewer_tokens_do_not_depend_on_the_other_windows() -> None:
    """101 tokens leave three positions; the same window alone and beside a longer one."""
    head = shaken("inception:adapter=2,axis=tokens")
    given = inputs(SMALL, lengths=(101, 53), tokens=101)
    with torch.no_grad():
        together = head(**given)[1, :53]
        alone = head(given["states"][:, 1:, :53], given["mask"][1:, :53])[0]
    assert torch.allclose(together, alone, atol=1e-5)
    assert together[:, 0].unique().numel() > 40  # the line between two positions


# ---- pads


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("training", [False, True])
def test_pads_change_nothing(text: str, training: bool) -> None:
    given = inputs(geometry_of(text))
    noisy = dict(given, states=torch.where(given["mask"][None, :, :, None], given["states"], 1e3))
    found = []
    for one in (given, noisy):
        head = shaken(text).train(training)
        logits = real(head(**one), one)
        logits.sum().backward()
        found.append([logits, *head.buffers(), *(p.grad for p in head.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert all(bool(t.isfinite().all()) for t in found[1])


@pytest.mark.parametrize("text", [*CNNS, *INCEPTIONS])
def test_further_pads_change_nothing(text: str) -> None:
    head = shaken(text)
    given = inputs(SMALL)
    more = {"states": F.pad(given["states"], (0, 0, 0, 3), value=7.0), "mask": F.pad(given["mask"], (0, 3))}
    with torch.no_grad():
        assert torch.allclose(head(**more)[:, :4][given["mask"]], real(head(**given), given), atol=1e-5)
        assert bool(head(**more).isfinite().all())


# ---- computing blocks again


@pytest.mark.parametrize("text", SMALL_SPECS)
@pytest.mark.parametrize("half", [False, True])
def test_checkpointing_changes_no_number(text: str, half: bool) -> None:
    given = inputs(geometry_of(text))
    found, kept = [], []
    for again in (False, True):
        head = shaken(text).train()
        head.checkpoint = again
        saved: list[int] = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t
        )
        with torch.autocast("cpu", torch.bfloat16, enabled=half), hooks:
            logits = head(**given)
        real(logits, given).float().pow(2).sum().backward()
        found.append([logits, *head.buffers(), *(p.grad for p in head.parameters())])
        kept.append(sum(saved))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert kept[1] < kept[0] / 2


def test_a_head_is_not_checkpointed_unasked() -> None:
    assert all(shaken(text).checkpoint is False for text in ("cnn", "xception_abbr"))


@pytest.mark.parametrize("text", [*CNNS, *INCEPTIONS, *XCEPTIONS])
def test_evaluation_in_parts_changes_no_logit(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    head, given = shaken(text), inputs(SMALL, lengths=(4, 2, 3))
    with torch.no_grad():
        whole = head(**given)
        monkeypatch.setattr(conv, "_PART", 5)
        assert torch.allclose(head(**given), whole, atol=1e-5)


# ---- as any head


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_every_parameter_is_trained(text: str) -> None:
    head, given = shaken(text).train(), inputs(geometry_of(text))
    real(head(**given), given).pow(2).sum().backward()
    idle = [n for n, p in head.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert idle == []


@pytest.mark.parametrize(
    "text", ["cnn", "cnn:dilated", "cnn:kernel=nxn,input=average", *INCEPTIONS, *XCEPTIONS]
)
@pytest.mark.parametrize("hidden", [1, 7, 32])
def test_any_width_and_a_single_token(text: str, hidden: int) -> None:
    geometry = Geometry(states=2, hidden=hidden, outputs=3)
    head, given = shaken(text, geometry), inputs(geometry, lengths=(1,), tokens=1)
    assert head(**given).shape == (1, 1, 3)
    assert bool(head(**given).isfinite().all())
    assert bool(head.train()(**given).isfinite().all())


@pytest.mark.parametrize("text", LABEL_HEADS)
@pytest.mark.parametrize("hidden", [1, 12, 40])
@pytest.mark.parametrize("pooled", [False, True])
def test_labels_of_any_width_with_and_without_a_pooler(text: str, hidden: int, pooled: bool) -> None:
    geometry = Geometry(states=2, hidden=hidden, outputs=1, task="score", pooled=pooled)
    head, given = shaken(text, geometry), inputs(geometry, lengths=(1,), tokens=1)
    assert head(**given).shape == (1, 1)
    assert bool(head(**given).isfinite().all())
    assert bool(head.train()(**given).isfinite().all())


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_half_precision_states(text: str) -> None:
    head, given = shaken(text), inputs(geometry_of(text))
    whole = real(head(**given), given)
    half = {k: v.bfloat16() if v.is_floating_point() else v for k, v in given.items()}
    with torch.autocast("cpu", torch.bfloat16):
        logits = real(head(**half), half).float()
    assert (logits - whole).abs().max() < 0.1 * whole.abs().max()


@pytest.mark.parametrize("text", SMALL_SPECS)
def test_a_saved_head_comes_back_bit_by_bit(text: str, tmp_path: Path) -> None:
    head, given = shaken(text), inputs(geometry_of(text))
    save_head(head, tmp_path, about={})
    loaded, _ = load_head(tmp_path)
    assert torch.equal(loaded(**given), head(**given))


def test_heads_begin_as_keras_would() -> None:
    head: Any = parse_head("inception:adapter=8").build(SMALL, seed=0)
    layer = head.blocks["4a"].three
    limit = math.sqrt(6 / (9 * (96 + 208)))
    assert 0.99 * limit < layer.weight.abs().max() <= limit
    assert layer.bias.eq(0.2).all()
    separable: Any = parse_head("xception_mod:adapter=8").build(SMALL, seed=0)
    depthwise = separable.blocks[4].convs[1].depthwise.weight
    limit = math.sqrt(6 / (5 * (728 + 1)))
    assert 0.99 * limit < depthwise.abs().max() <= limit
    norm = separable.blocks[4].norms[1]
    values = [norm.weight, norm.bias, norm.running_mean, norm.running_var]
    assert [t.detach().unique().tolist() for t in values] == [[1], [0], [0], [1]]


def test_pooled_inputs_tell_how_much_each_layer_counts() -> None:
    for text in ("cnn:input=learned", "inception:adapter=3", "xception_mod:adapter=3"):
        head: Head = shaken(text)
        assert sum(head.layer_weights() or []) == pytest.approx(1)
    assert shaken("cnn").layer_weights() is None
    assert shaken("cnn:input=average").layer_weights() is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cnn:adapter=8", "adapter of cnn .* input=learned"),
        ("cnn:adapter=-1,input=learned", "adapter of cnn must be at least 0"),
        ("cnn:dropout=1", "dropout of cnn must lie"),
        ("cnn:kernel=3x3", "must be one of 1xn, nxn"),
        ("inception:adapter=0", "adapter of inception must be at least 1"),
        ("inception:dropout=-0.1", "dropout of inception must lie"),
        ("inception:axis=layers", "must be one of features, tokens"),
        ("xception_mod:adapter=2", "adapter of xception_mod must be at least 3"),
        ("xception:pool=min", "must be one of avg, max"),
        ("xception_abbr:order=middle", "must be one of first, last"),
    ],
)
def test_bad_options_are_one_sentence(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


def test_span_and_label_heads_are_told_apart() -> None:
    with pytest.raises(ConfigError, match=r"xception\.v1 is a head for label and score"):
        parse_head("xception").build(SMALL, seed=0)
    with pytest.raises(ConfigError, match=r"cnn\.v1 is a head for span"):
        parse_head("cnn").build(SMALL_LABEL, seed=0)
