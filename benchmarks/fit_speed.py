"""How fast heads are fitted, beside encoding alone, fine-tuning and LoRA.

    python benchmarks/fit_speed.py [--windows 8192] [--parts encode,heads,cnn,tune,small] [--json FILE]

An encoder of BERT-large's shape with random weights reads windows with the lengths of SQuAD 2.0 (386 tokens at
most). Every way sees the same windows; a line tells non-pad tokens a second, the time relative to encoding alone,
and the peak of memory. Fine-tuning and LoRA take one step per encoder call, with the same 16,384 tokens a call.
Heads run through `FitRun`, the product's own fitting loop. A first pass warms up, a second is timed.

On a CPU (`--device cpu --shape tiny`) it only shows that everything runs.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.feed import LiveFeed
from bertvision.feed.batches import batch_width
from bertvision.feed.plan import HEAD_RUN, epoch_batches, group_calls
from bertvision.heads import parse_head
from bertvision.tasks.span.loss import span_loss
from bertvision.train.fit import FitConfig, FitRun

LENGTHS = [36, 68, 84, 98, 107, 113, 117, 121, 124, 127, 130, 133, 135, 138, 141, 144, 147, 150, 153, 156, 159,
           162, 166, 169, 173, 177, 182, 186, 191, 196, 202, 209, 216, 224, 234, 246, 260, 276, 299, 338,
           386]  # fmt: skip
"""Quantiles 0, 1/40, ... 1 of the windows of SQuAD 2.0's training set at 386 tokens."""

SHAPES = {"large": (24, 1024, 16), "small": (6, 384, 12), "tiny": (2, 32, 2)}
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


class Bench:
    """Times passes over the same windows and keeps the lines."""

    def __init__(self, windows: Windows, device: str) -> None:
        self.windows, self.device = windows, torch.device(device)
        self.lines: dict[str, dict[str, float]] = {}

    def time(self, name: str, one_pass: Callable[[], int], *, repeat: int = 2) -> None:
        """`one_pass` returns the real tokens it read; the first pass is not counted."""
        one_pass()
        best, peak, tokens = float("inf"), 0, 0
        for _ in range(repeat):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            tokens = one_pass()
            if self.device.type == "cuda":
                torch.cuda.synchronize()
                peak = max(peak, torch.cuda.max_memory_allocated())
            best = min(best, time.perf_counter() - began)
        self.lines[name] = {
            "tokens_per_second": tokens / best,
            "us_per_token": 1e6 * best / tokens,
            "peak_gb": peak / 1e9,
        }
        print(f"{name:48s} {tokens / best:12,.0f} tokens/s   peak {peak / 1e9:6.2f} GB", flush=True)

    def ratio(self, name: str, to: str) -> float:
        return self.lines[name]["us_per_token"] / self.lines[to]["us_per_token"]


# ---- bertvision


def encode_only(feed: LiveFeed, batch_size: int) -> Callable[[], int]:
    def one_pass() -> int:
        return sum(
            int(feed.windows.lengths[b.windows].sum()) for b in feed.epoch(0, batch_size=batch_size, seed=0)
        )

    return one_pass


def fit_heads(
    feed: LiveFeed, heads: tuple[str, ...], batch_size: int, most: int | None = None
) -> Callable[[], int]:
    specs = [(text, parse_head(text), 0) for text in heads]
    run = FitRun(feed, specs, FitConfig(heads=heads, batch_size=batch_size, epochs=1000))
    lengths = feed.windows.lengths

    def one_pass() -> int:
        tokens = 0
        run.epoch = run.batch = 0
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
            loss = span_loss(logits, batch.mask, labels[torch.from_numpy(indices).to(labels.device)])
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
    """The same calls the feed makes."""
    batches = epoch_batches(windows.lengths, 16, seed=0, epoch=0, run=HEAD_RUN)
    for call in group_calls(batches, windows.lengths, tokens_per_call)[:most]:
        indices = np.concatenate(call)
        width = batch_width(encoder, int(windows.lengths[indices].max()))
        yield indices, collate(windows, indices, pad_id=0, device=encoder.device, width=width)


def lora(encoder: Encoder) -> nn.Module:
    import copy

    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(copy.deepcopy(encoder.model), config)


def eager_loop(encoder: Encoder, windows: Windows, batch_size: int) -> Callable[[], int]:
    """The usual loop: a batch of windows through the encoder, its states stacked, one step of the head."""
    from bertvision.heads import Geometry

    head = (
        parse_head("adapter").build(Geometry(encoder.num_states, encoder.hidden), seed=0).to(encoder.device)
    )
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)

    def one_pass() -> int:
        tokens = 0
        for indices in epoch_batches(windows.lengths, batch_size, seed=0, epoch=0):
            batch = collate(windows, indices, pad_id=0, device=encoder.device)
            with encoder.autocast():
                with torch.no_grad():
                    output = encoder.model.eval()(
                        input_ids=batch.ids, attention_mask=batch.mask.long(), output_hidden_states=True
                    )
                logits = head(torch.stack(output.hidden_states), batch.mask)
            loss = span_loss(logits, batch.mask, labels[torch.from_numpy(indices).to(labels.device)])
            loss.backward()
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            tokens += int(windows.lengths[indices].sum())
        return tokens

    return one_pass


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--windows", type=int, default=8192)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", default="large", choices=sorted(SHAPES))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tokens-per-call", type=int, default=16_384)
    parser.add_argument("--parts", default="encode,heads,cnn,tune,small")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    parts = args.parts.split(",")
    windows = make_windows(args.windows)
    bench = Bench(windows, args.device)
    encoder = make_encoder(args.shape, args.device)
    feed = LiveFeed(encoder, windows, tokens_per_call=args.tokens_per_call)
    ratios: dict[str, float] = {}

    def against(name: str, to: str = "encode only") -> None:
        ratios[f"{name} / {to}"] = bench.ratio(name, to)

    bench.time("encode only", encode_only(feed, args.batch))
    if "heads" in parts:
        bench.time("adapter-386", fit_heads(feed, ("adapter",), args.batch))
        bench.time("12 pooling and adapter heads", fit_heads(feed, FAMILY, args.batch))
        sweep = tuple(f"adapter:size=64,lr={lr}" for lr in (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3))
        bench.time("6 adapters of 64, stacked", fit_heads(feed, sweep, args.batch))
        for name in ("adapter-386", "12 pooling and adapter heads", "6 adapters of 64, stacked"):
            against(name)
    if "each" in parts:
        for text in FAMILY:
            bench.time(text, fit_heads(feed, (text,), args.batch), repeat=1)
            against(text)
    if "cnn" in parts:
        for text in CNN:
            bench.time(text, fit_heads(feed, (text,), args.batch, most=8), repeat=1)
            against(text)
    if "tune" in parts:
        calls = max(2, args.windows // 128)
        full = make_encoder(args.shape, args.device)
        bench.time("fine-tuning", tune(full, full.model, windows, args.tokens_per_call, calls))
        del full
        model = lora(encoder)
        bench.time("LoRA r=16", tune(encoder, model, windows, args.tokens_per_call, calls))
        if args.device == "cuda" and "compiled" in parts:
            compiled: Any = torch.compile(model, dynamic=True)
            bench.time("LoRA r=16, compiled", tune(encoder, compiled, windows, args.tokens_per_call, calls))
        for name in ("fine-tuning", "LoRA r=16", "LoRA r=16, compiled"):
            if name in bench.lines and "adapter-386" in bench.lines:
                against(name, "adapter-386")
                memory = bench.lines["adapter-386"]["peak_gb"] / max(bench.lines[name]["peak_gb"], 1e-9)
                ratios[f"peak memory, adapter-386 / {name}"] = memory
    if "small" in parts:
        small = make_encoder("small" if args.shape != "tiny" else "tiny", args.device)
        wide = LiveFeed(small, windows)
        bench.time("small: eager loop, adapter-386", eager_loop(small, windows, args.batch))
        bench.time("small: encode only", encode_only(wide, args.batch))
        bench.time("small: adapter-386", fit_heads(wide, ("adapter",), args.batch))
        against("small: eager loop, adapter-386", "small: adapter-386")
        against("small: adapter-386", "small: encode only")
    print()
    for name, value in ratios.items():
        print(f"{name:72s} {value:7.3f}")
    if args.json:
        device = torch.cuda.get_device_name() if args.device == "cuda" else platform.processor()
        settings = vars(args) | {"json": None, "device": device, "torch": torch.__version__}
        args.json.write_text(
            json.dumps({"settings": settings, "lines": bench.lines, "ratios": ratios}, indent=1)
        )


if __name__ == "__main__":
    main()
