"""How fast heads are fitted, beside encoding alone, fine-tuning and LoRA.

    python benchmarks/fit_speed.py [--windows 8192] [--parts heads,each,cnn,tune,compiled,small,memory] [--json FILE]

An encoder of BERT-large's shape with random weights reads windows with the lengths of SQuAD 2.0 (386 tokens at
most). Every way sees the same windows; a line tells non-pad tokens a second and the time relative to another way.
Fine-tuning and LoRA take one step per encoder call, with the same 16,384 tokens a call.
Heads run through `FitRun`, the product's own fitting loop. A first pass warms up; of three more the median counts.

On a CPU (`--device cpu --shape tiny`) it only shows that everything runs.
"""

import argparse
import copy
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line sets it

import numpy as np
import torch
from common import DEVICE, GPU, Clock, Pass, arguments, new_store, random_encoder, random_windows, write
from torch import nn

from bertvision.data.windows import Windows
from bertvision.encoder.batch import collate
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.heads.base import bare_batch
from bertvision.states.base import LiveStates, widths
from bertvision.states.plan import HEAD_RUN, epoch_batches, group_calls
from bertvision.states.stored import StoredStates
from bertvision.tasks.span_decode import span_loss
from bertvision.train.config import FitConfig
from bertvision.train.fit import FitRun

FAMILY = ("learned_pooling", "average_pooling", "adapter:size=64", "adapter:size=64,skip", "adapter:size=64,unshared",
          "adapter:size=64,unshared,skip", "adapter", "adapter:skip", "adapter:unshared", "adapter:unshared,skip",
          "pooled_adapter", "twin_adapter")  # fmt: skip
"""Rows 4 and 7-16 and plain average pooling."""

CNN = ("cnn", "cnn:dilated", "cnn:input=learned", "cnn:input=learned,adapter=386",
       "cnn:kernel=nxn,input=learned,adapter=386,skip=false", "inception", "xception_mod")  # fmt: skip


States = LiveStates | StoredStates


# ---- bertvision


def encode_only(states: States, batch_size: int) -> Pass:
    lengths = states.windows.lengths
    return lambda: sum(
        int(lengths[batch.windows].sum()) for batch in states.epoch(0, batch_size=batch_size, seed=0)
    )


def fit_heads(states: States, heads: tuple[str, ...], batch_size: int) -> Pass:
    specs = [(text, parse_head(text), 0) for text in heads]
    run = FitRun(states, specs, FitConfig(heads=heads, batch_size=batch_size, epochs=1000))
    lengths = states.windows.lengths

    def one_pass() -> int:
        tokens = run.epoch = run.walk = run.batch = 0
        for batch in run.batches():
            run.train_batch(batch)
            tokens += int(lengths[batch.windows].sum())
        run.settle()
        return tokens

    return one_pass


def stored_states(encoder: Encoder, windows: Windows, dtype: Any, root: str) -> StoredStates:
    """All states in a store below `root`; nothing is read yet."""
    states = StoredStates(encoder, new_store(Path(root), encoder, windows, dtype))
    began = time.perf_counter()
    states.fill(f"store {dtype}")
    seconds, size = time.perf_counter() - began, states.store.nbytes / 1e9
    print(f"{encoder.name}: {size:.1f} GB of {dtype} encoded and written in {seconds:.1f} s")
    return states


# ---- the others


class Loop:
    """A usual training loop over windows: bf16 autocast, AdamW, the span loss, clipping."""

    def __init__(self, encoder: Encoder, windows: Windows, parameters: list[Any], **how: Any) -> None:
        self.encoder, self.windows, self.parameters = encoder, windows, parameters
        self.optimizer = torch.optim.AdamW(parameters, **how)
        self.labels = torch.from_numpy(windows.labels.astype(np.int64)).to(encoder.device)

    def step(self, indices: np.ndarray, logits: torch.Tensor, mask: torch.Tensor) -> int:
        """One update; the real tokens it read."""
        labels = self.labels[torch.from_numpy(indices).to(self.labels.device)]
        span_loss(logits, mask, labels).mean().backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return int(self.windows.lengths[indices].sum())


def tune(encoder: Encoder, model: nn.Module, windows: Windows, tokens_per_call: int, calls: int) -> Pass:
    """`model` and a linear layer on its last state, in the same calls the states make."""
    head = nn.Linear(encoder.hidden, 2).to(encoder.device)
    trained = [p for p in [*model.parameters(), *head.parameters()] if p.requires_grad]
    loop = Loop(encoder, windows, trained, lr=1e-5, fused=True)
    batches = epoch_batches(windows.lengths, 16, seed=0, epoch=0, run=HEAD_RUN)
    wide = widths(encoder, windows.lengths)
    model.train()

    def one_pass() -> int:
        tokens = 0
        for call in group_calls(batches, wide, tokens_per_call)[:calls]:
            indices = np.concatenate([piece for _, piece in call])
            width = int(wide[indices].max())
            batch = collate(windows, indices, pad_id=0, device=encoder.device, width=width)
            with encoder.autocast():
                logits = head(model(input_ids=batch.ids, attention_mask=batch.mask.long())[0])
            tokens += loop.step(indices, logits, batch.mask)
        return tokens

    return one_pass


def lora(encoder: Encoder, dtype: torch.dtype = torch.float32) -> nn.Module:
    """peft as it comes, on a copy of the model."""
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    config = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(copy.deepcopy(encoder.model).to(encoder.device, dtype), config)


def eager_loop(encoder: Encoder, windows: Windows, batch_size: int) -> Pass:
    """A batch of windows through the frozen encoder, its states stacked, one step of the head."""
    geometry = Geometry(encoder.num_states, encoder.hidden)
    head = parse_head("adapter").build(geometry, seed=0).to(encoder.device)
    loop = Loop(encoder, windows, [*head.parameters()], lr=1e-3)
    encoder.model.to(encoder.device)  # a frozen encoder keeps only its bf16 copy there

    def one_pass() -> int:
        tokens = 0
        for indices in epoch_batches(windows.lengths, batch_size, seed=0, epoch=0):
            batch = collate(windows, indices, pad_id=0, device=encoder.device)
            words = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
            with encoder.autocast():
                with torch.no_grad():
                    output = encoder.model.eval()(**words, output_hidden_states=True)
                logits = head(bare_batch(torch.stack(output.hidden_states), batch.mask))
            tokens += loop.step(indices, logits, batch.mask)
        return tokens

    return one_pass


# ---- memory


def peak_memory(name: str, args: argparse.Namespace) -> float:
    """GB the allocator held at most for one way alone, in this process: run it in one of its own."""
    windows = random_windows(min(args.windows, 1024))
    encoder = random_encoder(args.shape, args.device)
    if name in ("encode only", "adapter-386"):
        states = LiveStates(encoder, windows, tokens_per_call=args.tokens_per_call)
        alone = name == "encode only"
        one_pass = encode_only(states, args.batch) if alone else fit_heads(states, ("adapter",), args.batch)
    else:
        model = encoder.model if name == "fine-tuning" else lora(encoder)
        if name != "fine-tuning":
            encoder.model.to("cpu")  # LoRA wrapped a copy of it
        one_pass = tune(encoder, model, windows, args.tokens_per_call, 8)
    one_pass()
    one_pass()
    return torch.cuda.max_memory_reserved() / 1e9


def compare_memory(args: argparse.Namespace, clock: Clock) -> dict[str, float]:
    """Each way in a fresh process, so that none pays for the other's memory."""
    found = {}
    others = ["fine-tuning"] + ["LoRA r=16"] * bool(importlib.util.find_spec("peft"))
    for name in ("encode only", "adapter-386", *others):
        command = [sys.executable, __file__, "--memory-of", name, "--shape", args.shape, "--batch", str(args.batch),
                   "--tokens-per-call", str(args.tokens_per_call), "--windows", str(args.windows)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[name] = float(done.stdout.split()[-1])
        print(f"{name:52s} {found[name]:8.2f} GB held at most", flush=True)
    for name in others:
        clock.ratio(f"memory of adapter-386 / {name}", found["adapter-386"] / found[name])
    return found


def main() -> None:
    args = arguments(
        __doc__, windows=8192, device=DEVICE, shape="large", batch=64, tokens_per_call=16_384,
        parts="heads,cnn,tune,compiled,small,stored,memory", memory_of=str,
    )  # fmt: skip
    if args.memory_of:
        print(peak_memory(args.memory_of, args))
        return
    parts = args.parts.split(",")
    windows, clock = random_windows(args.windows), Clock()
    encoder = random_encoder(args.shape, args.device)
    small = random_encoder("tiny" if args.shape == "tiny" else "small", args.device)
    states = LiveStates(encoder, windows, tokens_per_call=args.tokens_per_call)
    encode = ("encode only", encode_only(states, args.batch))
    memory: dict[str, float] = {}

    def save() -> None:
        write(args, lines=clock.lines, ratios=clock.ratios, memory_gb=memory)

    if "heads" in parts:
        sweep = tuple(f"adapter:size=64,lr={lr}" for lr in (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3))
        several = {
            "adapter-386": ("adapter",),
            "12 pooling and adapter heads": FAMILY,
            "6 adapters of 64": sweep,
        }
        for name, heads in several.items():
            clock.compare(name, fit_heads(states, heads, args.batch), encode)
    for text in FAMILY if "each" in parts else ():
        clock.compare(text, fit_heads(states, (text,), args.batch), encode)
    few = LiveStates(
        encoder, windows.take(range(min(256, len(windows)))), tokens_per_call=args.tokens_per_call
    )
    for text in CNN if "cnn" in parts else ():
        clock.compare(text, fit_heads(few, (text,), args.batch), ("encode few", encode_only(few, args.batch)))
    if "small" in parts:
        wide = LiveStates(small, windows)
        fitted = ("small: adapter-386", fit_heads(wide, ("adapter",), args.batch))
        clock.compare(*fitted, ("small: encode only", encode_only(wide, args.batch)))
        clock.compare("small: eager loop, adapter-386", eager_loop(small, windows, args.batch), fitted)
    for source, tokens in ((encoder, args.tokens_per_call), (small, 0)) if "stored" in parts else ():
        live = LiveStates(source, windows, tokens_per_call=tokens)
        beside = (f"{source.name}: adapter-386 live", fit_heads(live, ("adapter",), args.batch))
        for dtype in ("bf16", "int8"):
            with tempfile.TemporaryDirectory() as root:
                kept = stored_states(source, windows, dtype, root)
                fitting = fit_heads(kept, ("adapter",), args.batch)
                clock.compare(f"{source.name}: adapter-386 from {dtype} store", fitting, beside)
                clock.take_turns({f"{source.name}: reading {dtype} alone": encode_only(kept, args.batch)})
                save()
    if "memory" in parts and GPU:
        memory |= compare_memory(args, clock)
    save()
    if "tune" in parts:
        fitted = ("adapter-386", fit_heads(states, ("adapter",), args.batch))
        others: dict[str, Any] = {"fine-tuning": random_encoder(args.shape, args.device).model}
        if importlib.util.find_spec("peft"):
            others["LoRA r=16"] = lora(encoder)
            others["LoRA r=16, bf16 weights"] = half = lora(encoder, torch.bfloat16)
            if "compiled" in parts:
                others["LoRA r=16, compiled"] = torch.compile(lora(encoder), dynamic=True)
                others["LoRA r=16, bf16 weights, compiled"] = torch.compile(half, dynamic=True)
        else:
            print("LoRA is left out: pip install peft")
        for name, model in others.items():
            passing = tune(encoder, model, windows, args.tokens_per_call, max(2, args.windows // 128))
            clock.compare(name, passing, fitted)
            save()


if __name__ == "__main__":
    main()
