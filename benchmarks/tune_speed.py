"""How fast an encoder is fine-tuned, beside transformers' Trainer on the same windows.

    python benchmarks/tune_speed.py [--cases base:12,base:48,large:12,large:48] [--windows 8192] [--json FILE]
    python benchmarks/tune_speed.py --encoder FOLDER --train train.json --dev dev.json --cases real:48

Non-pad tokens a second, twice: `steady`, the last three quarters of an epoch's steps, and `whole`, the epoch with
everything before its first step: building and capturing in bertvision's `finetune`, starting processes that collate in
`Trainer.train()`. The Trainer pads to each batch's longest window, groups by length, computes in bf16, has the fused
AdamW and four such processes. Both take turns, bertvision first and last; ratios compare means of two runs.

Encoders of BERT's shapes have random weights; their windows have SQuAD 2.0's lengths, and the answer stands between
two marks that can be learned. Losses are means over eighths of the epoch; Trainer and bertvision order the windows
differently, so two seeds of each show what differences mean. With --encoder both tune a real one and are scored on dev.
"""

import argparse
import json
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as the command line sets it

import numpy as np
import torch
from common import DEVICE, arguments, random_encoder, random_windows, write
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from bertvision.data.examples import SpanData
from bertvision.data.windows import WindowConfig, Windows
from bertvision.encoder.encoder import Encoder
from bertvision.heads import Geometry, parse_head
from bertvision.heads.base import Head
from bertvision.states.base import StateBatch
from bertvision.tasks.span import SPAN
from bertvision.train import finetune
from bertvision.train.config import FinetuneConfig
from bertvision.train.job import Job, Split, dev_logits, load_split, score_logits
from bertvision.train.run_folder import read_metrics


class Laps:
    """The time at which a quarter of the steps, and all of them, were done on the device."""

    def __init__(self, steps: int, device: torch.device) -> None:
        self.steps, self.device, self.done = steps, device, 0
        self.first = self.last = 0.0

    def step(self) -> None:
        self.done += 1
        if self.done in (self.steps // 4, self.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            self.first, self.last = self.last, time.perf_counter()

    def rate(self, tokens: int) -> float:
        """Tokens a second between the two."""
        return tokens * (1 - (self.steps // 4) / self.steps) / (self.last - self.first)


def eighths(losses: list[float]) -> list[float]:
    return [round(float(np.mean(part)), 4) for part in np.array_split(losses, max(1, min(8, len(losses))))]


def bertvision(
    encoder: Encoder, train: Split, batch: int, lr: float, seed: int
) -> tuple[dict[str, Any], Head]:
    """bertvision's run, its steps counted, and the head it trained."""
    kept: list[Any] = []
    plain, folder = finetune.make_steps, Path(tempfile.mkdtemp())
    laps = Laps(math.ceil(len(train.windows) / batch), encoder.device)

    def counting(*values: Any) -> Any:
        steps = plain(*values)
        kept.append(steps.heads[0])
        update = steps.update

        def counted() -> None:
            update()
            laps.step()

        steps.update = counted
        return steps

    finetune.make_steps, began = counting, time.perf_counter()
    try:
        config = FinetuneConfig(batch_size=batch, lr=lr, seed=seed)
        stage, _ = finetune.tune(encoder, [Job.only(train, None, config)], folder=folder, config=config)
    finally:
        finetune.make_steps = plain
    found, total = stage.results, time.perf_counter() - began
    losses = [record["loss"] for record in read_metrics(stage.metrics)]
    shutil.rmtree(folder)
    row = {
        "steady": laps.rate(train.windows.num_tokens),
        "whole": found["tokens_per_second"],
        "seconds": found["train_seconds"],
        "with_snapshot": total,
        "peak_gb": found["peak_bytes"] / 1e9,
        "losses": eighths(losses),
    }
    return row, kept[0]


class _Reader(nn.Module):
    """An encoder with bertvision's own head and loss, as the Trainer calls a model."""

    def __init__(self, encoder: Encoder, seed: int) -> None:
        super().__init__()
        self.model = encoder.model
        self.types = encoder.passes_types
        self.head = parse_head("last_state").build(Geometry(encoder.num_states, encoder.hidden), seed=seed)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        words = {"input_ids": input_ids, "attention_mask": attention_mask}
        words |= {"token_type_ids": token_type_ids} if self.types else {}
        states = self.model(**words).last_hidden_state[None]
        windows, bounds = np.zeros(len(labels), np.int64), labels  # neither is read
        batch = StateBatch(states, attention_mask.bool(), labels, windows, bounds)
        logits = self.head(batch)
        return {"loss": SPAN.loss(logits, batch).mean(), "logits": logits}


class _Dataset(torch.utils.data.Dataset[dict[str, Any]]):
    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.lengths = windows.lengths.tolist()

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        part = slice(int(self.windows.offsets[index]), int(self.windows.offsets[index + 1]))
        return {
            "input_ids": self.windows.ids[part],
            "types": self.windows.types[part],
            "labels": self.windows.labels[index],
            "length": self.lengths[index],
        }


def _collate(items: list[dict[str, Any]]) -> dict[str, Tensor]:
    width = max(item["length"] for item in items)

    def padded(name: str) -> NDArray[np.int64]:
        rows = np.zeros((len(items), width), np.int64)
        for row, item in zip(rows, items, strict=True):
            row[: item["length"]] = item[name]
        return rows

    mask = np.arange(width) < np.array([item["length"] for item in items])[:, None]
    return {
        "input_ids": torch.from_numpy(padded("input_ids")),
        "token_type_ids": torch.from_numpy(padded("types")),
        "attention_mask": torch.from_numpy(mask.astype(np.int64)),
        "labels": torch.from_numpy(np.stack([item["labels"] for item in items]).astype(np.int64)),
    }


def trainer(encoder: Encoder, train: Split, batch: int, lr: float, seed: int) -> tuple[dict[str, Any], Head]:
    on_gpu = encoder.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    model = _Reader(encoder, seed)
    folder = tempfile.mkdtemp()
    settings = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=batch, num_train_epochs=1, bf16=on_gpu, learning_rate=lr,
        lr_scheduler_type="linear", warmup_steps=round(0.1 * math.ceil(len(train.windows) / batch)), weight_decay=0.01,
        logging_steps=10, report_to=[], save_strategy="no", disable_tqdm=True, seed=seed,
        train_sampling_strategy="group_by_length", optim="adamw_torch_fused", remove_unused_columns=False,
        dataloader_num_workers=4 if on_gpu else 0, use_cpu=not on_gpu, label_names=["labels"],
    )  # fmt: skip
    losses: list[float] = []

    laps = Laps(math.ceil(len(train.windows) / batch), encoder.device)

    class Count(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            laps.step()

    class Quiet(Trainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "loss" in logs:
                losses.append(float(logs["loss"]))

    data = _Dataset(train.windows)
    runner = Quiet(
        model=model, args=settings, train_dataset=data, data_collator=_collate, callbacks=[Count()]
    )
    began = time.perf_counter()
    runner.train()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    encoder.changed()
    result = {
        "steady": laps.rate(train.windows.num_tokens),
        "whole": train.windows.num_tokens / seconds,
        "seconds": seconds,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0,
        "losses": eighths(losses),
    }
    return result, model.head


def case(text: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """bertvision, Trainer (both seeds), bertvision again; before them a short run of each that does not count."""
    shape, size = text.split(":")
    rows: list[dict[str, Any]] = []
    ways = (("bertvision", 0), ("Trainer", 0), ("Trainer", 1), ("bertvision", 1))
    for number, (way, seed) in enumerate((*ways[:2], *ways)):
        warm_up, dev = number < 2, None
        if args.device == "cuda":
            torch.cuda.empty_cache()
        if shape == "real":
            encoder = Encoder.load(args.encoder, device=args.device)
            most = 1024 if warm_up else args.max_train_examples
            train = load_split(args.train, encoder, WindowConfig(), max_examples=most)
            dev = load_split(args.dev, encoder, WindowConfig()) if args.dev and not warm_up else None
        else:
            encoder = random_encoder(shape, args.device)
            windows = random_windows(min(1024, args.windows) if warm_up else args.windows)
            train = Split(SpanData([], [], "marks"), windows, "", WindowConfig())
        run = trainer if way == "Trainer" else bertvision
        found, head = run(encoder, train, int(size), args.lr, seed)
        if warm_up:
            continue
        if dev is not None:
            encoder.model.eval()
            found |= score_logits(dev_logits(dev, head.to(encoder.device), lambda own=encoder: own), dev)
        rows.append({"case": text, "way": way, "seed": seed} | found)
        yield rows[-1]
    means = {
        (way, name): float(np.mean([row[name] for row in rows if row["way"] == way]))
        for way in ("bertvision", "Trainer")
        for name in ("steady", "whole")
    }
    ratios = {
        f"{name}_ratio": means["bertvision", name] / means["Trainer", name] for name in ("steady", "whole")
    }
    yield {"case": text} | ratios


def main() -> None:
    args = arguments(
        __doc__, cases="base:12,base:48,large:12,large:48", windows=8192, lr=5e-5, device=DEVICE, encoder="embedded",
        train="demo:train", dev="", max_train_examples=int,
    )  # fmt: skip
    logging.disable(logging.WARNING)
    rows: list[dict[str, Any]] = []
    for text in args.cases.split(","):
        for row in case(text, args):
            rows.append(row)
            print(json.dumps(row), flush=True)
            write(args, rows=rows)


if __name__ == "__main__":
    main()
