"""What every head promises, whoever wrote it; then heads as text and as files: options, mistakes, damaged folders.

The formulas stand in test_heads_formulas.py and test_heads_conv.py.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from head_cases import CASES, IDS, TOKEN, WINDOW, batch_of, cast, changed, real, shaken
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from bertvision.artifacts import write_tensors
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import Geometry, Head, StateBatch, base, head_names, parse_head
from bertvision.heads.base import activation_bytes, cost, head_class, load_head, register, save_head
from bertvision.heads.layers import BatchNorm, Dropout, set_noise
from bertvision.heads.spec import CATALOGUE, for_windows

every_head = pytest.mark.parametrize(("text", "geometry"), CASES, ids=IDS)
NOTHING_KEPT = {"last_state.v1", "layer_reader.v1"}
"""Heads whose backward pass needs nothing but the states and the weights."""


def loss_and_gradients(head: Head, batch: StateBatch) -> list[Tensor]:
    """Logits, buffers and gradients of one training pass."""
    head.zero_grad()
    logits = real(head(batch), batch)
    logits.float().pow(2).sum().backward()
    return [logits.detach(), *head.buffers(), *(p.grad for p in head.parameters() if p.grad is not None)]


def test_every_registered_head_is_in_the_list() -> None:
    units = {(parse_head(text).name, geometry.unit) for text, geometry in CASES}
    assert units == {(name, unit) for name in head_names() for unit in head_class(name).units}


@every_head
def test_shapes(text: str, geometry: Geometry) -> None:
    """Any numbers of windows, tokens, states and outputs, any width, with and without a pooler; finite at pads, too."""
    only_pairs = text.startswith(("biaffine", "cacnn"))  # these have exactly a start and an end
    states, hidden = 2 if text.startswith("layer_reader") else 1, 12 if "ctx" in text else 1
    bare = Geometry(states, hidden, 2 if only_pairs else 1, geometry.unit)
    for shape in (geometry, bare):
        head = shaken(text, shape)
        width = 2 + 2 * head.config.rank if text.startswith("biaffine") else shape.outputs
        for examples, tokens in ((1, 1), (3, 5)):
            batch = batch_of(shape, examples * head.windows, tokens)
            for mode in (True, False):
                logits = head.train(mode)(batch)
                assert logits.shape == (examples, *([tokens] if shape.unit == "token" else []), width)
                assert bool(logits.isfinite().all())


@every_head
def test_pads_change_nothing(text: str, geometry: Geometry) -> None:
    """Neither what stands at pads nor how many there are, in evaluation and in training; every parameter is trained."""
    batch = batch_of(geometry)
    assert not batch.mask.all()
    noisy = changed(batch, states=torch.where(batch.mask[None, :, :, None], batch.states, 1e3))
    for training in (False, True):
        found = []
        for one in (batch, noisy):
            head = shaken(text, geometry).train(training)
            set_noise(head, 1)
            found.append([t.clone() for t in loss_and_gradients(head, one)])
            assert all(bool(t.isfinite().all()) for t in found[-1])
            assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    states = F.pad(batch.states, (0, 0, 0, 3), value=7.0)
    wider = changed(batch, states=states, mask=F.pad(batch.mask, (0, 3)))
    with torch.no_grad():
        head = shaken(text, geometry)
        torch.testing.assert_close(real(head(wider), wider), real(head(batch), batch), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@every_head
def test_a_head_reads_what_it_says(text: str, geometry: Geometry) -> None:
    """`cls_only`, `last_only` and `reads_context` decide what is kept and handed out at all."""
    head, batch = shaken(text, geometry), batch_of(geometry)
    expected = head(batch)

    def unchanged(**fields: Any) -> bool:
        return torch.equal(head(changed(batch, **fields)), expected)

    states = batch.states * 2 + 1
    states[:, :, 0] = batch.states[:, :, 0]
    assert unchanged(states=states) == head.cls_only
    states = batch.states * 2 + 1
    states[-1] = batch.states[-1]
    assert unchanged(states=states) or not head.last_only
    assert unchanged(bounds=torch.zeros_like(batch.bounds)) != head.reads_context
    if head.cls_only:  # the classification token, wherever it stands
        last = batch.mask.sum(1) - 1
        states = torch.zeros_like(batch.states)
        states[:, torch.arange(len(last)), last] = batch.states[:, :, 0]
        assert unchanged(states=states, cls=last)


@torch.no_grad()
@every_head
def test_a_saved_head_comes_back_bit_by_bit(text: str, geometry: Geometry, tmp_path: Path) -> None:
    head, batch = shaken(text, geometry), batch_of(geometry)
    save_head(head, tmp_path, about={"label": "mine"})
    loaded, config = load_head(tmp_path)
    assert (loaded.config, loaded.geometry) == (head.config, head.geometry)
    assert (config["label"], config["parameters"]) == ("mine", head.num_parameters)
    assert not loaded.training
    theirs = loaded.state_dict()
    assert all(torch.equal(value, theirs.pop(name)) for name, value in head.state_dict().items())
    assert not theirs
    assert torch.equal(head(batch), loaded(batch))
    assert loaded.layer_weights() == head.layer_weights()
    assert sum(head.layer_weights() or [1.0]) == pytest.approx(1)


@every_head
def test_costs_are_those_of_the_real_head(text: str, geometry: Geometry) -> None:
    """Parameters exactly; memory is counted where packing copies nothing, so half more is allowed."""
    head, spec = shaken(text, geometry).train(), parse_head(text)
    counted = cost(spec, geometry, tokens=6)
    assert counted.parameters == head.num_parameters == sum(p.numel() for p in head.parameters())
    running = [t for m in head.modules() if isinstance(m, BatchNorm) for t in (m.running_mean, m.running_var)]
    assert counted.total == counted.parameters + sum(t.numel() for t in running)
    assert (counted.flops_per_token or 0) > 0
    batch = batch_of(geometry, head.windows)
    own = {p.untyped_storage().data_ptr() for p in (batch.states, *head.parameters())}
    kept: dict[int, Any] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is given twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        head(batch)
    really, counted = sum(s.nbytes() for s in kept.values()), activation_bytes(spec, geometry, tokens=6)
    assert (counted > 0) == (spec.name not in NOTHING_KEPT)
    assert counted / 1.5 - 600 <= really <= 1.5 * counted + 600


@every_head
def test_half_precision_is_close_to_float32(text: str, geometry: Geometry) -> None:
    head, batch = shaken(text, geometry), batch_of(geometry)
    expected = real(head(batch), batch).detach()
    with torch.autocast("cpu", torch.bfloat16):
        logits = real(head(cast(batch, torch.bfloat16)), batch)
    assert (logits - expected).abs().max() < 0.08 * expected.abs().max()
    logits.float().pow(2).mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in head.parameters())


@torch.no_grad()
@every_head
def test_training_is_a_pure_function_of_the_key(text: str, geometry: Geometry) -> None:
    """No random stream is read: the same key gives the same logits, another one others where there is dropout."""
    batch, found = batch_of(geometry), []
    for stream, key in ((0, 5), (1, 5), (0, 6)):
        head = shaken(text, geometry).train()
        torch.manual_seed(stream)
        set_noise(head, key, 0)
        found.append(real(head(batch), batch))
    noisy = any(isinstance(m, Dropout) and m.active for m in head.modules())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2]) != noisy
    assert not any(isinstance(m, nn.modules.dropout._DropoutNd) for m in head.modules())


@every_head
def test_weights_come_from_the_seed_alone(text: str, geometry: Geometry) -> None:
    spec, found = parse_head(text), []
    for i, seed in enumerate((7, 7, 8)):
        state = torch.manual_seed(i).get_state()
        found.append(spec.build(geometry, seed=seed).state_dict())
        assert torch.equal(torch.get_rng_state(), state), "the global stream goes on as if nothing was built"
    same, other = (all(torch.equal(v, some[k]) for k, v in found[0].items()) for some in found[1:])
    assert (same, other) == (True, False)


@pytest.mark.parametrize(
    ("text", "geometry"), [case for case in CASES if head_class(parse_head(case[0]).name).stackable]
)
def test_stacked_heads_are_the_heads(text: str, geometry: Geometry) -> None:
    """Three heads as one batched computation, dropout included, against each alone: logits and gradients."""
    heads = [parse_head(text).build(geometry, seed=seed).train() for seed in range(3)]
    for i, head in enumerate(heads):
        set_noise(head, i)
    parameters, buffers = stack_module_state(heads)  # pyright: ignore[reportArgumentType]
    batch = batch_of(geometry)

    stacked = vmap(lambda p, b: functional_call(heads[0], (p, b), (batch,)))(parameters, buffers)
    stacked.pow(2).sum().backward()
    for i, head in enumerate(heads):
        alone = head(batch)
        torch.testing.assert_close(stacked[i], alone, rtol=1e-4, atol=1e-4)
        alone.pow(2).sum().backward()
        for name, parameter in head.named_parameters():
            assert parameter.grad is not None
            together, scale = parameters[name].grad[i], float(parameter.grad.abs().max())
            torch.testing.assert_close(together, parameter.grad, rtol=1e-3, atol=1e-3 * scale + 1e-6)


@pytest.mark.parametrize("name", [name for name in head_names() if len(head_class(name).units) == 1])
def test_another_unit_is_refused(name: str) -> None:
    spec = parse_head(name)
    other = TOKEN if head_class(name).units == ("window",) else WINDOW
    with pytest.raises(ConfigError, match="use one of") as caught:
        cost(spec, other)
    listed = str(caught.value).partition("use one of ")[2].split(", ")
    assert set(listed) == {name for name in head_names() if other.unit in head_class(name).units}


# ---- heads as text


@pytest.mark.parametrize(
    ("text", "name", "values", "train", "label"),
    [
        ("adapter", "adapter.v1", {"size": 386, "skip": False}, {}, "adapter-386"),
        ("adapter.v1:size=64", "adapter.v1", {"size": 64}, {}, "adapter-64"),
        (" adapter:size=64, skip ", "adapter.v1", {"size": 64, "skip": True}, {}, "adapter-64-skip"),
        ("adapter:skip=0", "adapter.v1", {"skip": False}, {}, "adapter-386"),
        ("adapter:gelu=erf,lr=3e-4", "adapter.v1", {"gelu": "erf"}, {"lr": 3e-4}, "adapter-386-gelu=erf-lr=0.0003"),
        ("learned_pooling:weight-decay=0.1,seed=3", "learned_pooling.v1", {}, {"weight_decay": 0.1, "seed": 3},
         "learned-pooling-weight_decay=0.1"),
        ("adapter:optimizer=sgd,schedule=linear,warmup=0.2,clip=0,patience=3", "adapter.v1", {},
         {"optimizer": "sgd", "schedule": "linear", "warmup": 0.2, "clip": 0.0, "patience": 3},
         "adapter-386-optimizer=sgd-schedule=linear-warmup=0.2-clip=0.0-patience=3"),
    ],
)  # fmt: skip
def test_specs_are_read(text: str, name: str, values: Any, train: dict[str, Any], label: str) -> None:
    spec = parse_head(text)
    assert (spec.name, spec.label) == (name, label)
    assert dataclasses.asdict(spec.config) | values == dataclasses.asdict(spec.config)
    assert {k: v for k, v in dataclasses.asdict(spec.train).items() if v is not None} == train


WRONG = {
    "adaptor": "did you mean adapter",
    "zzz": "known: .*learned_pooling",
    "": "no head ''",
    "adapter:sise=64": "did you mean size",
    "last_state:size=3": "no option 'size'",
    "adapter:size=64,size=32": "size twice",
    "adapter:size=many": "int, not 'many'",
    "adapter:skip=perhaps": "bool",
    "adapter:gelu=none": "tanh, erf",
    "adapter:lr=fast": "float",
    "adapter:optimizer=lion": "adamw, adam, sgd",
    "adapter:patience=-1": "patience",
    "adapter:size=10000000": "size of adapter must lie between 1 and 1,000,000",
    "ladder:size=6,heads=4": "multiple of heads",
    "head2toe:keep=0": "keep of head2toe",
    "head2toe:select_at=1.5": "select_at of head2toe",
    "minbert:vectors=3": "vectors of minbert",
    "cnn:adapter=8": "input=learned",
    "cacnn:n=3": "n of cacnn .* even",
    "cacnn:bank=3-x": "bank of cacnn",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_head_is_one_sentence(text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG[text]) as caught:
        parse_head(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name.removesuffix(".v1") for name in base.registered()])
def test_every_range_is_enforced(name: str) -> None:
    for field in dataclasses.fields(parse_head(name).config):
        wrong = ["1", "-0.1", "nan"] if "rate" in field.metadata else []
        if (least := field.metadata.get("least")) is not None:
            wrong = [str(least - 1)]
        assert least is not None or field.type is not int or field.name == "vectors", "no range"
        for value in wrong:
            with pytest.raises(ConfigError, match=f"{field.name} of {name} must"):
                parse_head(f"{name}:{field.name}={value}")


def test_every_head_of_the_catalogue_has_a_label_that_can_be_a_folder() -> None:
    labels = [parse_head(text).label for text in [*(row.head for row in CATALOGUE), "adapter:lr=0.01"]]
    assert len(set(labels)) == len(labels)
    assert not any(character in label for label in labels for character in "/\\: ")


def test_a_head_with_weights_for_every_place_takes_the_length_of_the_windows() -> None:
    texts = ("ap_glue", "ap_glue:size=4", "ap_glue:tokens=5", "cls_linear")
    made = ["ap_glue:tokens=77", "ap_glue:size=4,tokens=77", "ap_glue:tokens=5", "cls_linear"]
    assert [for_windows(text, 77) for text in texts] == made


# ---- files


def _change(key: str, **values: Any) -> Callable[[Path], Any]:
    def apply(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (config[key] if key else config).update(values)
        (folder / "config.json").write_text(json.dumps(config))

    return apply


def _cut(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json is missing"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "cut weights": (_cut("model.safetensors"), "damaged"),
    "cut config": (_cut("config.json"), "JSON"),
    "list": (lambda f: (f / "config.json").write_text("[1]"), "does not describe a bertvision head"),
    "an encoder's": (lambda f: (f / "config.json").write_text('{"model_type": "bert"}'), "does not describe"),
    "newer": (_change("", schema=99, bertvision="9.0"), r"format 99 by bertvision 9\.0"),
    "unknown head": (_change("head", name="adaptor.v1"), "adaptor.*adapter"),
    "bad setting": (_change("head", config={"size": 0}), "size"),
    "other geometry": (_change("geometry", hidden=13), r"down\.weight.*\[3, 12\].*\[3, 13\]"),
    "bad geometry": (_change("geometry", depth=1), "cannot build"),
    "lost tensor": (
        lambda f: write_tensors(f / "model.safetensors", {"a": torch.ones(1)}),
        "different heads",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_one_sentence(case: str, tmp_path: Path) -> None:
    spoil, words = DAMAGE[case]
    save_head(shaken("adapter:size=3"), tmp_path, about={})
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    assert str(tmp_path) not in (tmp_path / "config.json").read_text(), "the folder can be moved"
    spoil(tmp_path)
    with pytest.raises(ArtifactError, match=words) as caught:
        load_head(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- a user's own


@dataclass(frozen=True)
class WideConfig:
    width: int
    bias: bool = True


class Wide(Head):
    """states[0] -> Linear(width) -> Linear(C)."""

    def __init__(self, config: WideConfig, geometry: Geometry) -> None:
        super().__init__(config, geometry)
        self.first = nn.Linear(geometry.hidden, config.width, bias=config.bias)
        self.last = nn.Linear(config.width, geometry.outputs)

    def forward(self, batch: StateBatch) -> Tensor:
        return self.last(self.first(batch.states[0]))


def test_versions_and_costs_of_a_users_head(monkeypatch: pytest.MonkeyPatch) -> None:
    head_names()  # what ships is registered
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    first, second = (register(f"wide.v{n}", WideConfig)(type("Wide", (Wide,), {})) for n in (1, 2))
    assert "wide.v2" in head_names()
    spec = parse_head("wide:width=6,bias=false")
    assert type(spec.build(TOKEN, seed=0)) is second, "the newest version answers to the bare name"
    assert type(parse_head("wide.v1:width=6").build(TOKEN, seed=0)) is first
    counted = cost(spec, TOKEN)
    assert (counted.parameters, counted.flops_per_token) == (12 * 6 + 6 * 2 + 2, 2 * (12 * 6 + 6 * 2))
    with pytest.raises(ConfigError, match="needs a value for width"):
        parse_head("wide")
    with pytest.raises(ValueError, match="registered already"):
        register("wide.v1", WideConfig)(Wide)
