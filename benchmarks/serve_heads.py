"""Ten label heads served from one encoder pass, beside each of them alone.

    python benchmarks/serve_heads.py [--encoder embedded] [--batches 1 32] [--threads 2] [--json FILE]

`Model` on a stream of sentences of the embedded demo data, in batches of one and of 32; everything counts,
from the text to the predictions. Ten heads and one of them alone take turns on the same sentences in one process, and
the one that stands alone changes from turn to turn. Shown are medians over the turns, and the ratio of ten to one; of
the process's own CPU time too, which says more on a machine that others use (with one thread: several wait by
spinning). Weights of heads are random, which costs the same as trained ones.
"""

import platform

import torch
from common import arguments, contest, random_system, show_contest, write

from bertvision.data.load import load_span_data
from bertvision.data.windows import WindowConfig
from bertvision.encoder.encoder import Encoder
from bertvision.model.model import Model
from bertvision.tasks.label_score import LabelTask

HEADS = (
    "tenney_small", "adapter_pooler", "adapter_pooler:size=64", "adapter_pooler:pooling=average", "cls_linear",
    "cls_mlp", "cls_mlp:match=64", "mean_pooler", "mean_pooler:last", "attention_pooler",
)  # fmt: skip


def sentences(count: int) -> list[str]:
    """Of the demo's paragraphs."""
    paragraphs = load_span_data("demo:dev").paragraphs
    found = [part.strip() for paragraph in paragraphs for part in paragraph.split(". ") if part.strip()]
    return [found[i % len(found)] for i in range(count)]


def main() -> None:
    args = arguments(
        __doc__, encoder="embedded", heads=list(HEADS), batches=[1, 32], sentences=64, turns=20, threads=2
    )
    torch.set_num_threads(args.threads)
    encoder = Encoder.load(args.encoder, device="cpu")
    systems, windows = {}, WindowConfig(max_seq_length=128)
    for number, text in enumerate(args.heads):
        task = LabelTask(tuple(f"class {i}" for i in range(2 + number % 4)))
        name = f"task{number}-{text.partition(':')[0]}"
        systems[name] = random_system(name, text, encoder, task, windows, seed=number)
    many = Model(systems, encoder)
    alone = [Model({name: system}, encoder) for name, system in systems.items()]
    print(f"{encoder.name}: {len(systems)} heads beside one, {args.threads} threads, {platform.machine()}")
    rows = []
    for batch in args.batches:
        texts, turn = sentences(max(args.sentences, batch)), iter(range(10**9))

        def ask(model: Model, texts: list[str] = texts, batch: int = batch) -> None:
            for i in range(0, len(texts), batch):
                model(texts[i : i + batch])

        for model in alone:
            ask(model)  # warm
        one = lambda ask=ask, turn=turn: ask(alone[next(turn) % len(alone)])  # noqa: E731
        row = contest(lambda ask=ask: ask(many), one, len(texts), args.turns)
        show_contest(f"batches of {batch}", row)
        rows.append({"batch": batch} | row)
    write(args, rows=rows)


if __name__ == "__main__":
    main()
