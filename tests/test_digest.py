"""The digest of the states below a cut, and the head that reads it beside the states above."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fit_helpers import fit_config
from store_cases import extract, toy_store, windows_of
from torch import Tensor
from torch.nn import functional as F
from toy import save_encoder

from bertvision.data.windows import Windows
from bertvision.encoder import digest as digest_module
from bertvision.encoder.batch import collate
from bertvision.encoder.cut import LowerEncoder, Top, lower_encoder
from bertvision.encoder.digest import Digest, components_of, make_digest
from bertvision.encoder.encoder import Encoder
from bertvision.encoder.stack import layer_list
from bertvision.errors import ArtifactError, ConfigError
from bertvision.heads import Geometry, cost, head_names, load_head, save_head
from bertvision.heads.base import head_class, run_head
from bertvision.heads.catalogue import CATALOGUE, SETS, expand
from bertvision.heads.cost import activation_bytes
from bertvision.heads.digest import DigestConfig, DigestHead, digest_head
from bertvision.states.base import States
from bertvision.states.batch import StateBatch
from bertvision.states.live import LiveStates
from bertvision.states.memory import MemoryStates
from bertvision.states.stored import StoredStates
from bertvision.train.zoo import zoo_members

LAYERS, K, SIZE = 4, 2, 6
CUT = LAYERS - K
GEOMETRY = Geometry(states=LAYERS + 1, hidden=32)
INNER = [
    "adapter:size=4",
    "adapter:size=4,skip,unshared",
    "learned_pooling",
    "biaffine:size=4,rank=2",
    "cacnn",
]
LAST_ALONE = {"cacnn"}
"""Heads that read the last state only."""


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = save_encoder(tmp_path_factory.mktemp("digest") / "bert", "bert", num_hidden_layers=LAYERS)
    return Encoder.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def windows() -> Windows:
    return windows_of([20, 7, 31, 12, 25, 9, 18, 30, 11, 16] * 3)


@pytest.fixture(scope="module")
def digest(encoder: Encoder, windows: Windows) -> Digest:
    return make_digest(encoder, windows, K, SIZE, seed=0)


def all_states(encoder: Encoder, windows: Windows, indices: list[int]) -> tuple[Tensor, Tensor]:
    """All states (L, B, T, H) of some windows and their mask."""
    batch = collate(windows, np.array(indices), pad_id=encoder.pad_id, device=encoder.device)
    return encoder.states(batch), batch.mask


# ---- the projection


def exact(sample: Tensor, size: int) -> Tensor:
    """Principal components (n, size) of a sample (n, c, H) by a full decomposition in float64."""
    x = sample.double()
    x = x - x.mean(0)
    x = x / x.square().mean((0, 2), keepdim=True).sqrt()
    left, *_ = torch.linalg.svd(x.flatten(1), full_matrices=False)
    return left[:, :size] * len(x) ** 0.5  # numbers of variance one


def test_components_are_those_of_a_full_decomposition() -> None:
    """Layers of very different size, and a spectrum that falls off, as that of states does."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 12, generator=generator) * 0.7 ** torch.arange(12)
    mix = torch.randn(12, 3 * 20, generator=generator)
    noise = 0.01 * torch.randn(400, 3 * 20, generator=generator)
    sizes = torch.tensor([0.1, 1.0, 50.0])[:, None]
    sample = (hidden @ mix + noise).view(400, 3, 20) * sizes + 3 * sizes
    made = components_of(sample.clone(), SIZE, seed=0)
    found = made.project(sample.transpose(0, 1)[:, None])[0]  # one window of 400 tokens
    wanted = exact(sample, SIZE)
    signs = (found.double() * wanted).sum(0).sign()
    torch.testing.assert_close(found.double(), wanted * signs, rtol=0, atol=2e-2)
    torch.testing.assert_close(found.mean(0), torch.zeros(SIZE), rtol=0, atol=1e-3)
    torch.testing.assert_close(found.std(0, correction=0), torch.ones(SIZE), rtol=1e-2, atol=0)


def test_a_digest_follows_from_the_seed_alone(encoder: Encoder, windows: Windows, digest: Digest) -> None:
    torch.manual_seed(99)
    stream = torch.get_rng_state()
    again = make_digest(encoder, windows, K, SIZE, seed=0)
    assert torch.equal(torch.get_rng_state(), stream)
    assert torch.equal(again.mean, digest.mean)
    assert torch.equal(again.components, digest.components)
    assert again.fingerprint == digest.fingerprint
    other = make_digest(encoder, windows, K, SIZE - 1, seed=0)
    assert other.fingerprint != digest.fingerprint
    assert (digest.cut, digest.size, digest.hidden) == (CUT, SIZE, encoder.hidden)


def test_the_numbers_are_white_on_the_data_itself(encoder: Encoder, windows: Windows, digest: Digest) -> None:
    """All tokens of these few windows are in the sample, pads are not."""
    states, mask = all_states(encoder, windows, list(range(len(windows))))
    numbers = digest.project(states[:CUT])[mask]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(SIZE), rtol=0, atol=1e-4)
    torch.testing.assert_close(numbers.T.cov(correction=0), torch.eye(SIZE), rtol=0, atol=2e-2)
    wanted = exact(states[:CUT, mask].transpose(0, 1), 1)
    assert float((numbers[:, :1] * wanted).mean().abs()) > 0.999


def test_the_sample_is_drawn_evenly_and_below_the_cut_alone(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [10] * 200
    windows = windows_of(lengths)
    monkeypatch.setattr(digest_module, "_SAMPLE", 50)
    monkeypatch.setattr(digest_module, "_ENCODED", 200)
    read: list[int] = []
    ran: list[int] = []
    real = digest_module.collate

    def spy(windows: Windows, indices: Any, **how: Any) -> Any:
        read.extend(indices.tolist())
        return real(windows, indices, **how)

    layers = layer_list(encoder.model)
    assert layers is not None
    monkeypatch.setattr(digest_module, "collate", spy)
    lower = LowerEncoder(encoder, K, every=True)
    hooks = [layer.register_forward_pre_hook(lambda *_, n=n: ran.append(n)) for n, layer in enumerate(layers)]
    sample = digest_module._sample(lower, windows)
    for hook in hooks:
        hook.remove()
    assert sample.shape == (50, CUT, encoder.hidden)
    assert len(read) == 20
    gaps = np.diff(read)
    assert (read[0], read[-1]) == (0, 199)
    assert gaps.min() >= 10
    assert gaps.max() <= 11
    assert set(ran) == set(range(CUT))
    states, mask = all_states(encoder, windows, read)
    flat = states[:CUT, mask].transpose(0, 1)  # (200, c, H)
    position = np.linspace(0, 199, 50).round().astype(int)
    torch.testing.assert_close(sample, flat[position], rtol=0, atol=1e-5)


def test_more_numbers_than_directions_are_zero() -> None:
    made = components_of(torch.randn(9, 1, 5, generator=torch.Generator().manual_seed(0)), 8, seed=0)
    assert made.components.shape == (1, 8, 5)
    assert bool(made.components.isfinite().all())
    assert made.components.abs().amax((0, 2)).bool().tolist() == [True] * 5 + [False] * 3
    assert not components_of(torch.ones(4, 2, 5), 3, seed=0).components.any()


def test_a_saved_digest_comes_back(digest: Digest, tmp_path: Path) -> None:
    digest.save(tmp_path / "digest.safetensors")
    found = Digest.load(tmp_path / "digest.safetensors")
    assert found.fingerprint == digest.fingerprint
    (tmp_path / "other.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ArtifactError, match=r"other.safetensors"):
        Digest.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("size", [0, 65, -1])
def test_sizes_that_cannot_be(size: int, encoder: Encoder, windows: Windows) -> None:
    with pytest.raises(ConfigError, match=f"--digest must be from 1 to 64 numbers a token, not {size}"):
        make_digest(encoder, windows, K, size, seed=0)
    with pytest.raises(ConfigError, match="--digest must be from 1 to 64"):
        DigestConfig(cut=1, size=size, head="adapter")


def test_nothing_below_the_cut(encoder: Encoder, windows: Windows) -> None:
    with pytest.raises(
        ConfigError, match=r"--digest has nothing to tell with --policy cut-4.*leave --digest out"
    ):
        make_digest(encoder, windows, LAYERS, SIZE, seed=0)
    with pytest.raises(ConfigError, match="use cut-1 to cut-4"):
        make_digest(encoder, windows, LAYERS + 1, SIZE, seed=0)


# ---- beside the state at the cut


def test_the_lower_encoder_puts_the_numbers_behind_the_state(
    encoder: Encoder, windows: Windows, digest: Digest
) -> None:
    lower = lower_encoder(encoder, K, digest)
    batch = collate(windows, np.arange(4), pad_id=encoder.pad_id, device=encoder.device)
    states = encoder.states(batch)
    (found,) = lower.layer_states(batch)
    assert found.shape == (*batch.ids.shape, lower.hidden)
    assert lower.hidden == encoder.hidden + SIZE
    state, numbers = lower.parts(found[None])
    torch.testing.assert_close(state[batch.mask], states[CUT][batch.mask], rtol=0, atol=1e-6)
    assert numbers is not None
    torch.testing.assert_close(
        numbers[batch.mask], digest.project(states[:CUT])[batch.mask], rtol=0, atol=1e-4
    )
    plain = lower_encoder(encoder, K)
    other = lower_encoder(encoder, K, Digest(digest.mean, 2 * digest.components))
    assert len({one.fingerprint for one in (lower, plain, other)}) == 3
    assert lower_encoder(encoder, K, digest).fingerprint == lower.fingerprint
    with pytest.raises(ConfigError, match="the digest is of 2 states"):
        lower_encoder(encoder, K + 1, digest)


@pytest.mark.parametrize("kind", ["live", "memory", "stored", "int8"])
def test_feeds_carry_the_numbers_to_the_head(
    kind: str, encoder: Encoder, windows: Windows, digest: Digest, tmp_path: Path
) -> None:
    """What training computes from kept numbers and the top is what the whole head computes from all states."""
    lower, top = lower_encoder(encoder, K, digest), Top(encoder.model, K).eval()
    head = digest_head(digest, "adapter:size=4,skip,init_std=0.1", GEOMETRY, seed=0).eval()
    if kind == "live":
        source: States = LiveStates(lower, windows, tokens_per_call=200)
    elif kind == "memory":
        source = MemoryStates(lower, windows, tokens_per_call=200)
    else:
        store = toy_store(tmp_path, lower, windows, dtype="int8" if kind == "int8" else "fp32")
        extract(store, lower)
        source = StoredStates(lower, store, tokens_per_call=200)
    rough = {"live": 1e-5, "stored": 1e-5, "memory": 1e-2, "int8": 0.2}[kind]
    for batch in source.epoch(0, batch_size=4, seed=0):
        state, numbers = lower.parts(batch.states)
        assert numbers is not None
        upper = torch.stack(top(state, batch.mask))
        found = head.from_parts(numbers, upper, batch.mask, context=batch.context)
        states, mask = all_states(encoder, windows, batch.windows.tolist())
        wanted = run_head(head, StateBatch(states, mask, batch.targets, batch.windows, batch.bounds))
        torch.testing.assert_close(found[mask], wanted[mask], rtol=0, atol=rough)


# ---- the head


def filled(inner: str, task: str = "span") -> tuple[DigestHead, StateBatch]:
    """A head with a random projection and a batch for it."""
    generator = torch.Generator().manual_seed(4)
    geometry = (
        GEOMETRY if task == "span" else Geometry(GEOMETRY.states, GEOMETRY.hidden, 3, "label", pooled=True)
    )
    made = Digest(
        torch.randn(CUT, 32, generator=generator), 0.2 * torch.randn(CUT, SIZE, 32, generator=generator)
    )
    head = digest_head(made, inner, geometry, seed=1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    states = torch.randn(geometry.states, 3, 7, 32, generator=generator)
    mask = torch.arange(7) < torch.tensor([7, 3, 5])[:, None]
    bounds = torch.tensor([[2, 7], [1, 3], [2, 5]])
    labels = torch.zeros(3, 2, dtype=torch.long)
    pooled = torch.randn(3, 32, generator=generator)
    return head, StateBatch(states, mask, labels, np.arange(3), bounds, pooled)


@pytest.mark.parametrize("inner", INNER)
def test_the_inner_head_reads_lift_cut_and_top(inner: str) -> None:
    head, batch = filled(inner)
    head.eval()
    states = batch.states
    flat = (states[:CUT] - head.mean[:, None, None]).permute(1, 2, 0, 3).flatten(2)  # (B, T, c H)
    numbers = flat @ head.components.transpose(0, 1).flatten(1).T
    lifted = numbers @ head.lift.weight.T + head.lift.bias
    read = torch.cat([lifted[None], states[CUT:]])
    wanted = run_head(head.inner, StateBatch(read, batch.mask, batch.targets, batch.windows, batch.bounds))
    found = run_head(head, batch)
    torch.testing.assert_close(found[batch.mask], wanted[batch.mask], rtol=1e-4, atol=1e-4)
    assert head.inner.geometry.states == 1 + K + 1


@pytest.mark.parametrize("inner", INNER)
def test_lift_and_inner_head_are_trained_and_nothing_else(inner: str) -> None:
    head, batch = filled(inner)
    run_head(head.train(), batch)[batch.mask].square().sum().backward()
    idle = {n for n, p in head.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)}
    assert idle == ({"lift.weight", "lift.bias"} if inner in LAST_ALONE else set())
    assert not head.mean.requires_grad
    assert not head.components.requires_grad
    inner_count = sum(p.numel() for p in head.inner.parameters())
    assert head.num_parameters == SIZE * 32 + 32 + inner_count == cost(head, GEOMETRY, tokens=7).parameters
    assert activation_bytes(head, GEOMETRY, tokens=7) > 0


@torch.no_grad()
@pytest.mark.parametrize(
    ("inner", "task"), [*((text, "span") for text in INNER), ("adapter_pooler", "label")]
)
def test_a_saved_head_works_alone(inner: str, task: str, tmp_path: Path) -> None:
    head, batch = filled(inner, task)
    save_head(head.eval(), tmp_path, about={})
    loaded, config = load_head(tmp_path)
    assert (loaded.config, loaded.geometry) == (head.config, head.geometry)
    assert config["parameters"] == head.num_parameters
    assert torch.equal(run_head(loaded, batch), run_head(head, batch))


@torch.no_grad()
def test_half_precision() -> None:
    head, batch = filled("adapter:size=4")
    with torch.autocast("cpu", torch.bfloat16):
        states = batch.states.bfloat16()
        half = StateBatch(states, batch.mask, batch.targets, batch.windows, batch.bounds)
        found = run_head(head, half)
    torch.testing.assert_close(found.float(), run_head(head, batch), rtol=0.1, atol=0.1)


def test_top_and_head_train_together(encoder: Encoder, windows: Windows, digest: Digest) -> None:
    """One loss through both: the gradient reaches every layer above the cut, the lift and the inner head."""
    lower, top = lower_encoder(encoder, K, digest), Top(encoder.model, K)
    head = digest_head(digest, "adapter:size=4,init_std=0.1", GEOMETRY, seed=0)
    batch = next(LiveStates(lower, windows, tokens_per_call=200).epoch(0, batch_size=8, seed=0))
    state, numbers = lower.parts(batch.states)
    assert numbers is not None
    top.zero_grad()
    losses = []
    optimizer = torch.optim.Adam([*top.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(15):
        logits = head.from_parts(numbers, torch.stack(top(state, batch.mask)), batch.mask)
        logits = logits.masked_fill(~batch.mask[..., None], -1e4)
        loss = F.cross_entropy(logits[..., 0], batch.targets[:, 0])
        loss = loss + F.cross_entropy(logits[..., 1], batch.targets[:, 1])
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None for p in [*top.parameters(), *head.parameters()])
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_it_is_registered_but_cannot_be_had_by_name() -> None:
    assert head_class("digest.v1") is head_class("digest") is DigestHead
    assert "digest.v1" not in head_names()
    assert not [row for row in CATALOGUE if row.head.startswith("digest")]
    assert not [head for heads in SETS.values() for head in heads if head.startswith("digest")]
    for text in ("digest", "digest.v1:cut=1,size=4,head=adapter"):
        with pytest.raises(
            ConfigError, match=r"made from the data: train it with .bertvision finetune"
        ) as caught:
            list(expand([text]))
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="made from the data"):
        zoo_members(fit_config("digest:cut=1,size=4,head=adapter"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"cut": 0}, "cut of a digest head must be at least 1"),
        ({"head": "adaptor"}, "did you mean adapter"),
        ({"head": "digest:cut=1,size=4,head=adapter"}, "must be another one"),
        ({"head": "adapter:lr=0.1"}, "no training of its own"),
    ],
)
def test_bad_configs_are_one_sentence(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DigestConfig(**({"cut": 1, "size": 4, "head": "adapter"} | config))


def test_heads_that_do_not_fit_are_refused(digest: Digest) -> None:
    with pytest.raises(ConfigError, match="needs more than 2 states"):
        digest_head(digest, "adapter", Geometry(states=CUT, hidden=32), seed=0)
    with pytest.raises(ConfigError, match="not for span"):
        digest_head(digest, "adapter_pooler", GEOMETRY, seed=0)
    head = digest_head(digest, "adapter", GEOMETRY, seed=0)
    with pytest.raises(ConfigError, match="same cut and --digest"):
        head.take(Digest(digest.mean, digest.components[:, :3]))
