"""How fast heads are fitted, beside encoding alone, fine-tuning and LoRA.

    python benchmarks/fit_speed.py [--windows 8192] [--parts heads,each,cnn,tune,compiled,small,memory] [--json FILE]

An encoder of BERT-large's shape with random weights reads windows with the lengths of SQuAD 2.0 (386 tokens at
most). Every way sees the same windows; a line tells non-pad tokens a second and the time relative to another way.
Fine-tuning and LoRA take one step per encoder call, with the same 16,384 tokens a call.
Heads run through `FitRun`, the product's own fitting loop. A first pass warms up; of three more the median counts.

On a CPU (`--device cpu --shape tiny`) it only shows that everything runs.
"""

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line sets it

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.heads import parse_head
from bertvision.states.base import LiveStates, widths
from bertvision.states.plan import HEAD_RUN, epoch_batches, group_calls
from bertvision.states.store import Identity, Store
from bertvision.states.stored import StoredStates
from bertvision.tasks.span_logits import span_loss
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun

LENGTHS = [36, 68, 84, 98, 107, 113, 117, 121, 124, 127, 130, 133, 135, 138, 141, 144, 147, 150, 153, 156, 159,
           162, 166, 169, 173, 177, 182, 186, 191, 196, 202, 209, 216, 224, 234, 246, 260, 276, 299, 338,
           386]  # fmt: skip
"""Quantiles 0, 1/40, ... 1 of the windows of SQuAD 2.0's training set at 386 tokens."""

SHAPES = {"large": (24, 1024, 16), "base": (12, 768, 12), "small": (6, 384, 12), "tiny": (2, 32, 2)}
"""Layers, hidden size, attention heads."""

FAMILY = ("learned_pooling", "average_pooling", "adapter:size=64", "adapter:size=64,skip", "adapter:size=64,unshared",
          "adapter:size=64,unshared,skip", "adapter", "adapter:skip", "adapter:unshared", "adapter:unshared,skip",
          "pooled_adapter", "twin_adapter")  # fmt: skip
"""Rows 4 and 7-16 and plain average pooling."""

CNN = ("cnn", "cnn:dilated", "cnn:input=learned", "cnn:input=learned,adapter=386",
       "cnn:kernel=nxn,input=learned,adapter=386,skip=false", "inception", "xception_mod")  # fmt: skip


class _Tokenizer:
    pad_token_id = 0


def make_encoder(shape: str, device: str) -> Encoder:
    layers, hidden, attention = SHAPES[shape]
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=attention,
        intermediate_size=4 * hidden,
    )
    torch.manual_seed(0)
    model = BertModel(config)
    return Encoder(model, _Tokenizer(), name=shape, device=torch.device(device), precision="auto")


def make_windows(count: int) -> Windows:
    """Random tokens in windows with SQuAD's lengths."""
    rng = np.random.default_rng(0)
    lengths = np.interp(rng.random(count), np.linspace(0, 1, len(LENGTHS)), LENGTHS).round().astype(np.int64)
    total = int(lengths.sum())
    context = np.stack([np.full(count, 14), lengths - 1], axis=1)
    label = (14 + rng.random(count) * (lengths - 16)).astype(np.int32)
    return Windows(
        ids=rng.integers(1000, 30000, total).astype(np.int32),
        types=np.zeros(total, np.uint8),
        chars=np.zeros((total, 2), np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        example=np.arange(count, dtype=np.int32),
        context=context.astype(np.int32),
        labels=np.stack([label, label], axis=1),
        null=np.zeros(count, np.int32),
        best=np.ones(total, np.bool_),
    )


Way = tuple[str, Callable[[], int]]
"""A name and a function that passes over the windows once and returns the real tokens it read."""


class Bench:
    """Times passes over the same windows and keeps the lines."""

    def __init__(self, windows: Windows, device: str) -> None:
        self.windows, self.device = windows, torch.device(device)
        self.lines: dict[str, dict[str, float]] = {}
        self.ratios: dict[str, float] = {}

    def _pass(self, one_pass: Callable[[], int]) -> float:
        """Microseconds a real token."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        tokens = one_pass()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return 1e6 * (time.perf_counter() - began) / tokens

    def time(
        self, name: str, one_pass: Callable[[], int], *, beside: tuple[str, Callable[[], int]] | None = None
    ) -> None:
        """Time a way of passing over the windows, after one pass to warm up.

        A clock that drifts must not decide a ratio: the way it is compared with runs before and after every pass.
        """
        one_pass()
        times, references = [], []
        for _ in range(3):
            if beside:
                references.append(self._pass(beside[1]))
            times.append(self._pass(one_pass))
        if beside:
            references.append(self._pass(beside[1]))
        median = float(np.median(times))
        spread = (max(times) - min(times)) / median
        self.lines[name] = {"tokens_per_second": 1e6 / median, "us_per_token": median, "spread": spread}
        text = f"{name:52s} {1e6 / median:12,.0f} tokens/s  (spread {100 * spread:3.0f} %)"
        if beside:
            ratio = self.ratios[f"{name} / {beside[0]}"] = median / float(np.median(references))
            text += f"  {ratio:6.3f} x {beside[0]}"
        print(text, flush=True)


# ---- bertvision


def encode_only(states: LiveStates | StoredStates, batch_size: int) -> Callable[[], int]:
    def one_pass() -> int:
        return sum(
            int(states.windows.lengths[b.windows].sum())
            for b in states.epoch(0, batch_size=batch_size, seed=0, reuse=True)
        )

    return one_pass


def stored_states(encoder: Encoder, windows: Windows, dtype: Any, root: str) -> StoredStates:
    """All states in a store below `root`; nothing is read yet."""
    identity = Identity(
        encoder=encoder.name, configuration="", precision=encoder.precision, windows="", preprocessing={},
        layers=tuple(range(encoder.num_states)), hidden=encoder.hidden, positions="all", dtype=dtype,
    )  # fmt: skip
    store = Store.at(root, identity, windows, encoder=encoder.name, data="random").begin()
    states = StoredStates(encoder, store)
    began = time.perf_counter()
    states.fill(f"store {dtype}")
    seconds = time.perf_counter() - began
    print(
        f"{encoder.name}: {states.store.nbytes / 1e9:.1f} GB of {dtype} encoded and written in {seconds:.1f} s"
    )
    return states


def fit_heads(
    states: LiveStates | StoredStates, heads: tuple[str, ...], batch_size: int, most: int | None = None
) -> Callable[[], int]:
    specs = [(text, parse_head(text), 0) for text in heads]
    run = FitRun(states, specs, FitConfig(heads=heads, batch_size=batch_size, epochs=1000))
    lengths = states.windows.lengths

    def one_pass() -> int:
        tokens = 0
        run.epoch = run.walk = run.batch = 0
        for i, batch in enumerate(run.batches()):
            if most is not None and i == most:
                break
            run.train_batch(batch)
            tokens += int(lengths[batch.windows].sum())
        run.settle()
        return tokens

    return one_pass


# ---- the others


def tune(
    encoder: Encoder, model: nn.Module, windows: Windows, tokens_per_call: int, calls: int
) -> Callable[[], int]:
    """A plain training loop over `model` and a linear layer on its last state: bf16 autocast, fused AdamW."""
    head = nn.Linear(encoder.hidden, 2).to(encoder.device)
    parameters = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)
    model.train()

    def one_pass() -> int:
        tokens = 0
        for indices, batch in _calls(encoder, windows, tokens_per_call, calls):
            with encoder.autocast():
                last = model(input_ids=batch.ids, attention_mask=batch.mask.long())[0]
                logits = head(last)
            loss = span_loss(logits, batch.mask, labels[torch.from_numpy(indices).to(labels.device)]).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tokens += int(windows.lengths[indices].sum())
        return tokens

    return one_pass


def _calls(
    encoder: Encoder, windows: Windows, tokens_per_call: int, most: int
) -> Iterator[tuple[np.ndarray, Any]]:
    """The same calls the states make."""
    batches = epoch_batches(windows.lengths, 16, seed=0, epoch=0, run=HEAD_RUN)
    wide = widths(encoder, windows.lengths)
    for call in group_calls(batches, wide, tokens_per_call)[:most]:
        indices = np.concatenate([piece for _, piece in call])
        width = int(wide[indices].max())
        yield indices, collate(windows, indices, pad_id=0, device=encoder.device, width=width)


def lora(encoder: Encoder, dtype: torch.dtype = torch.float32) -> nn.Module:
    """peft as it comes, on a copy of the model."""
    import copy

    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(copy.deepcopy(encoder.model).to(encoder.device, dtype), config)


def eager_loop(encoder: Encoder, windows: Windows, batch_size: int) -> Callable[[], int]:
    """The usual loop: a batch of windows through the encoder, its states stacked, one step of the head."""
    from bertvision.heads import Geometry
    from bertvision.heads.base import bare_batch

    head = (
        parse_head("adapter").build(Geometry(encoder.num_states, encoder.hidden), seed=0).to(encoder.device)
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)
    encoder.model.to(encoder.device)  # a frozen encoder keeps only its bf16 copy there

    def one_pass() -> int:
        tokens = 0
        for indices in epoch_batches(windows.lengths, batch_size, seed=0, epoch=0):
            batch = collate(windows, indices, pad_id=0, device=encoder.device)
            with encoder.autocast():
                with torch.no_grad():
                    output = encoder.model.eval()(
                        input_ids=batch.ids, attention_mask=batch.mask.long(), output_hidden_states=True
                    )
                logits = head(bare_batch(torch.stack(output.hidden_states), batch.mask))
            loss = span_loss(logits, batch.mask, labels[torch.from_numpy(indices).to(labels.device)]).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tokens += int(windows.lengths[indices].sum())
        return tokens

    return one_pass


def peak_memory(name: str, args: argparse.Namespace) -> float:
    """GB the allocator held at most for one way alone, in this process: run it in one of its own."""
    windows = make_windows(min(args.windows, 1024))
    encoder = make_encoder(args.shape, args.device)
    if name == "adapter-386":
        states = LiveStates(encoder, windows, tokens_per_call=args.tokens_per_call)
        one_pass = fit_heads(states, ("adapter",), args.batch)
    elif name == "encode only":
        one_pass = encode_only(LiveStates(encoder, windows, tokens_per_call=args.tokens_per_call), args.batch)
    else:
        model = encoder.model if name == "fine-tuning" else lora(encoder)
        if name != "fine-tuning":
            encoder.model.to("cpu")  # LoRA wrapped a copy of it
        one_pass = tune(encoder, model, windows, args.tokens_per_call, 8)
    one_pass()
    one_pass()
    return torch.cuda.max_memory_reserved() / 1e9


def compare_memory(args: argparse.Namespace) -> dict[str, float]:
    """Each way in a fresh process, so that none pays for the other's memory."""
    found = {}
    ways = ["encode only", "adapter-386", "fine-tuning"] + ["LoRA r=16"] * bool(
        importlib.util.find_spec("peft")
    )
    for name in ways:
        command = [sys.executable, __file__, "--memory-of", name, "--shape", args.shape, "--batch", str(args.batch),
                   "--tokens-per-call", str(args.tokens_per_call), "--windows", str(args.windows)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(done.stdout.split()[-1])
        print(f"{name:52s} {found[name]:8.2f} GB held at most", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="large", choices=sorted(SHAPES))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens-per-call", type=int, default=16_384)
    parser.add_argument("--parts", default="heads,cnn,tune,compiled,small,stored,memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--memory-of", help="only print the peak memory of this way")
    args = parser.parse_args()
    if args.memory_of:
        print(peak_memory(args.memory_of, args))
        return
    parts = args.parts.split(",")
    windows = make_windows(args.windows)
    bench = Bench(windows, args.device)
    encoder = make_encoder(args.shape, args.device)
    states = LiveStates(encoder, windows, tokens_per_call=args.tokens_per_call)
    encode = ("encode only", encode_only(states, args.batch))
    memory: dict[str, float] = {}

    def save() -> None:
        if args.json:
            device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
            settings = vars(args) | {"json": None, "device": device, "torch": torch.__version__}
            found = {"settings": settings, "lines": bench.lines, "ratios": bench.ratios, "memory_gb": memory}
            args.json.write_text(json.dumps(found, indent=1))

    bench.time(*encode)
    if "heads" in parts:
        sweep = tuple(f"adapter:size=64,lr={lr}" for lr in (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3))
        for name, heads in (("adapter-386", ("adapter",)), ("12 pooling and adapter heads", FAMILY),
                            ("6 adapters of 64, stacked", sweep)):  # fmt: skip
            bench.time(name, fit_heads(states, heads, args.batch), beside=encode)
    if "each" in parts:
        for text in FAMILY:
            bench.time(text, fit_heads(states, (text,), args.batch), beside=encode)
    if "cnn" in parts:
        few = LiveStates(
            encoder, windows.take(range(min(256, len(windows)))), tokens_per_call=args.tokens_per_call
        )
        for text in CNN:
            bench.time(
                text,
                fit_heads(few, (text,), args.batch),
                beside=("encode only", encode_only(few, args.batch)),
            )
    if "small" in parts:
        small = make_encoder("tiny" if args.shape == "tiny" else "small", args.device)
        wide = LiveStates(small, windows)
        fitted = ("small: adapter-386", fit_heads(wide, ("adapter",), args.batch))
        bench.time(*fitted, beside=("small: encode only", encode_only(wide, args.batch)))
        bench.time("small: eager loop, adapter-386", eager_loop(small, windows, args.batch), beside=fitted)
    if "stored" in parts:
        small = make_encoder("tiny" if args.shape == "tiny" else "small", args.device)
        for source, dtypes in ((encoder, ("bf16", "int8")), (small, ("bf16", "int8"))):
            live = LiveStates(
                source, windows, tokens_per_call=args.tokens_per_call if source is encoder else 0
            )
            beside = (f"{source.name}: adapter-386 live", fit_heads(live, ("adapter",), args.batch))
            for dtype in dtypes:
                with tempfile.TemporaryDirectory() as root:
                    kept = stored_states(source, windows, dtype, root)
                    name = f"{source.name}: adapter-386 from {dtype} store"
                    bench.time(name, fit_heads(kept, ("adapter",), args.batch), beside=beside)
                    bench.time(f"{source.name}: reading {dtype} alone", encode_only(kept, args.batch))
                    save()
    save()
    if "memory" in parts and args.device == "cuda":
        memory |= compare_memory(args)
    for name in ("fine-tuning", "LoRA r=16"):
        if name in memory:
            bench.ratios[f"memory of adapter-386 / {name}"] = memory["adapter-386"] / memory[name]
            print(f"memory of adapter-386 / {name}: {memory['adapter-386'] / memory[name]:.3f}")
    save()
    if "tune" in parts:
        calls = max(2, args.windows // 128)
        fitted = ("adapter-386", fit_heads(states, ("adapter",), args.batch))
        bench.time(*fitted, beside=encode)
        full = make_encoder(args.shape, args.device)
        others: dict[str, Any] = {"fine-tuning": full.model}
        if importlib.util.find_spec("peft"):
            others["LoRA r=16"] = lora(encoder)
            others["LoRA r=16, bf16 weights"] = half = lora(encoder, torch.bfloat16)
            if "compiled" in parts:
                others["LoRA r=16, compiled"] = torch.compile(lora(encoder), dynamic=True)
                others["LoRA r=16, bf16 weights, compiled"] = torch.compile(half, dynamic=True)
        else:
            print("LoRA is left out: pip install peft")
        for name, model in others.items():
            bench.time(name, tune(encoder, model, windows, args.tokens_per_call, calls), beside=fitted)
            save()
    save()


if __name__ == "__main__":
    main()
