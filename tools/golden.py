"""Golden numbers: what a change of the code must leave as it is.

    python tools/golden.py --record       run everything and write tools/golden.json
    python tools/golden.py                run everything, compare with tools/golden.json, exit 1 on a difference
    python tools/golden.py --only score   one group, or several

It drives the command line on a tiny random encoder and toy data (golden_toys.py) and reads what the verbs print and
leave: losses, dev scores, logits, answers, parameter counts. Offline, on a CPU, a minute or two.

An item is compared bit for bit first, then within a relative difference of 1e-5 (of the largest number in its list).
Whole numbers and texts must be equal. `ALLOWED` lists items that may differ, each with the reason.

Every number here depends on torch's kernels, so golden.json says which versions made it, and one thread and AVX2 are
used everywhere: the order of a sum, and with it the last bits, follows from both. With two threads or AVX512 the long
trainings drift by up to 1e-3. A difference with the same versions is a change of the code.

$BERTVISION_DATA, if set, names a folder with squad/dev-v2.0.json and squad/predictions/*.json: the scores of published
systems are then compared too. Without it they are left out.

After a renaming, edit golden_product.py: no other file knows flags, files or functions of the product.
"""

import argparse
import fnmatch
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from golden_product import (
    CACHE_VARIABLE,
    CHECKPOINT,
    RESUMED,
    Failed,
    Items,
    answers,
    bv,
    fitted,
    log,
    numbers,
    policy_counts,
    run_scores,
    snapshots,
    tensors,
    written,
)
from golden_toys import FILLER, Toys, make_table

RECORD = Path(__file__).with_suffix(".json")
TOLERANCE = 1e-5
ALLOWED = {"fit_spans/null-weight/*": "every seed of a fit reads the data in an order of its own"}
"""Patterns of items that may differ, and why."""


# ---- The groups

SPANS: dict[str, Any] = {"length": 64, "stride": 24, "device": "cpu", "precision": "fp32", "json": True}
TEXTS: dict[str, Any] = SPANS | {"length": 32}
ASKING: dict[str, Any] = {key: SPANS[key] for key in ("device", "precision", "json")}
TUNING: dict[str, Any] = {"log_every": 1, "lr": 1e-3, "batch_size": 8}

GROUPS: dict[str, Callable[[Toys], Items]] = {}


def group(make: Callable[[Toys], Items]) -> Callable[[Toys], Items]:
    GROUPS[make.__name__] = make
    return make


def fit(toys: Toys, name: str, heads: str, *, detail: bool = True, **flags: Any) -> Items:
    """`fit`: of every head its losses, dev scores, weights, and in `detail` what it answers on dev."""
    encoder, names = flags.pop("encoder", toys.encoder), heads.split()
    usual = {"train": toys.train, "dev": toys.dev, "lr": 1e-2, "epochs": 2, "source": "memory"} | SPANS
    out, items = toys.new(name), {}
    rows = {row["head"]: row for row in bv("fit", encoder, out=out, heads=names, **usual | flags)["heads"]}
    for head, (folder, losses) in fitted(out, names).items():
        items[f"{name}/{head}/loss"] = losses
        items[f"{name}/{head}/dev"] = numbers(rows[folder.name])
        items[f"{name}/{head}/weights"] = tensors(folder / "model.safetensors")
        if detail:
            items |= {f"{name}/{head}/{key}": value for key, value in answers(folder / "dev").items()}
    return items


FURTHER_SPAN_HEADS = (
    "cacnn cacnn:variant=ctx pooled_adapter:size=8 twin_adapter:size=8 adapter:size=8,unshared average_pooling ladder "
    "last_state_mlp recurrent layer_attention head2toe biaffine layer_reader:layer=1"
)
FURTHER_LABEL_HEADS = (
    "adapter_pooler xception_abbr xception_abbr:cls cls_mlp ap_glue minbert attention_pooler:over=layers+tokens "
    "mean_pooler:last layer_reader:layer=1"
)
SMALL: dict[str, Any] = {"max_train_examples": 12, "max_dev_examples": 6, "epochs": 1, "detail": False}
TINY: dict[str, Any] = SMALL | {"max_train_examples": 3, "max_dev_examples": 3, "lr": 1e-3}
"""For heads of many million parameters."""


@group
def fit_spans(toys: Toys) -> Items:
    heads = "last_state adapter:size=8 adapter:size=8,skip learned_pooling"
    items = fit(toys, "spans", heads, epochs=15)
    for stack in ("on", "off"):
        pair = "adapter:size=8,lr=1e-3 adapter:size=8,lr=1e-2"
        items |= fit(toys, f"stack-{stack}", pair, stack=stack, detail=False)
    schedule: dict[str, Any] = {"schedule": "linear", "warmup": 0.1, "keep": "best", "patience": 1}
    items |= fit(toys, "best", "last_state", epochs=4, **schedule)
    items |= fit(toys, "null-weight", "last_state", null_weight=0.5, seeds=[3], detail=False)
    items |= fit(toys, "further", FURTHER_SPAN_HEADS, **SMALL)
    items |= fit(toys, "convolutions", "cnn cnn:dilated,input=learned inception xception_mod", **TINY)
    return items | fit(toys, "demo", "last_state", train="demo:train", dev="demo:dev", **SMALL)


@group
def fit_texts(toys: Toys) -> Items:
    (train, dev), (score_train, score_dev) = toys.labels, toys.scores
    labels: dict[str, Any] = TEXTS | {"train": train, "dev": dev}
    scores: dict[str, Any] = TEXTS | {"train": score_train, "dev": score_dev, "task": "score"}
    items = fit(toys, "labels", "cls_linear tenney_small attention_pooler", epochs=10, **labels)
    items |= fit(toys, "scores", "cls_linear mean_pooler", epochs=10, **scores)
    asked: dict[str, Any] = {
        "prompt": "Does this mean the same?",
        "context_template": "first {first} second {second}",
    }
    items |= fit(toys, "prompt", "cls_linear", **labels, **asked)
    both: dict[str, Any] = {"train": f"answerable:{toys.train}", "dev": f"answerable:{toys.dev}"}
    items |= fit(toys, "answerable", "cls_linear", detail=True, **both)
    items |= fit(toys, "further", FURTHER_LABEL_HEADS, **SMALL, **labels)
    return items | fit(toys, "xception", "xception", **TINY | {"max_train_examples": 6}, **labels)


@group
def sources(toys: Toys) -> Items:
    """One head on live, kept and stored states, and on some of them."""
    items: Items = {}
    stored = {"source": "stored", "store": toys.new("store")}
    ways: dict[str, dict[str, Any]] = {
        "live": {"source": "live"},
        "memory": {"source": "memory"},
        "stored": stored,
        "stored again": stored,
        "int8": stored | {"dtype": "int8"},
    }
    for name, flags in ways.items():
        items |= fit(toys, name, "adapter:size=8", **flags)
    return items


def tune(toys: Toys, name: str, verb: str = "finetune", **flags: Any) -> Items:
    """A fine-tuning: every line of its log, its counts, and what each snapshot holds and answers."""
    out = toys.new(name)
    made = bv(verb, encoder=toys.encoder, out=out, **SPANS | TUNING | flags)
    items: Items = {f"{name}/counts": [made["trainable"], made["parameters"]]} | log(out, name)
    for snapshot in snapshots(out):
        for file in sorted(snapshot.rglob("*.safetensors")):
            if file.name != "logits.safetensors" and "encoder" not in file.parts:
                items[f"{name}/{snapshot.name}/{file.parent.name}"] = tensors(file)
        for folder in sorted(file.parent for file in snapshot.rglob("logits.safetensors")):
            place = f"{name}/{snapshot.name}/{folder.parent.name}"
            items |= {f"{place}/{key}": value for key, value in answers(folder).items()}
        files = sorted((snapshot / "encoder").glob("*.safetensors"))
        items[f"{name}/{snapshot.name}/encoder"] = [tensors(file) for file in files]
    return items


@group
def finetune(toys: Toys) -> Items:
    spans: dict[str, Any] = {"train": toys.train, "dev": toys.dev}
    items = tune(toys, "full", snapshots=[0.5], **spans)
    for policy in ("top-2", "houlsby-8", "bitfit", "cut-2"):
        items |= tune(toys, policy, policy=policy, **spans)
    odd = spans | {"accumulate": 2, "batch_tokens": 512, "sampling": "balanced", "head": "adapter:size=8"}
    items |= tune(toys, "odd", optimizer="adam", score_every=0.5, null_weight=0.5, **odd)
    train, dev = toys.labels
    items |= tune(toys, "apart", train=train, dev=dev, length=32, apart=True, head="minbert:vectors=2")
    return items | tune(toys, "labels", train=train, dev=dev, length=32)


@group
def multitask(toys: Toys) -> Items:
    named = {"labels": toys.labels, "scores": toys.scores, "spans": (toys.train, toys.dev)}
    tasks = [{"name": key, "train": [str(train)], "dev": str(dev)} for key, (train, dev) in named.items()]
    tasks[1]["task"] = "score"
    recipe, items = toys.folder / "tasks.yaml", Items()
    for name, some in {"two": tasks[:2], "three": tasks}.items():
        recipe.write_text(json.dumps({"tasks": some}))  # JSON is YAML
        items |= tune(toys, name, "multitask", config=recipe, order="mixed")
    return items


@group
def triplet(toys: Toys) -> Items:
    sst = make_table(toys.folder / "sst.csv", 7, 40, "id sentence sentiment", "\t")
    quora = make_table(toys.folder / "quora.csv", 8, 40, "id sentence1 sentence2 is_duplicate", "\t")
    sets = {"sst": [f"cs224n:sst:{sst}"], "quora": [f"cs224n:quora:{quora}"], "held_out": 0.2}
    flags = {key: value for key, value in (SPANS | TUNING).items() if key not in ("source", "stride")}
    out = toys.new("triplet")
    bv("triplet", encoder=toys.encoder, out=out, **flags | sets)
    return log(out, "softmin")


@group
def package(toys: Toys) -> Items:
    """A head on a tuned encoder, labels, and several tasks: exported, and asked again."""
    items: Items = {}

    def ask(name: str, folder: Path, data: Path, **flags: Any) -> None:
        packed, out = toys.new(f"package-{name}"), toys.new(f"answers-{name}")
        bv("export", folder, out=packed, json=True)
        items[f"{name}/said"] = bv("predict", packed, data=data, out=out, max_examples=16, **ASKING, **flags)
        for file in sorted(out.rglob("predictions.json")):
            place = Path(name) / file.parent.relative_to(out)
            items.update({f"{place}/{key}": value for key, value in written(file.parent).items()})

    train, dev = toys.labels
    tune(toys, "tuned", train=toys.train, policy="houlsby-8")
    fit(toys, "heads", "adapter:size=8 last_state", encoder=snapshots(toys.folder / "out/tuned")[0])
    head, _ = fitted(toys.folder / "out/heads", ["adapter:size=8", "last_state"])["adapter:size=8"]
    ask("spans", head, toys.dev, n_best=4)
    one = {"question": "Who built the mill?", "context": f"{FILLER} The mill in Brill was built by Zoë Elm."}
    items["one"] = bv("predict", toys.folder / "out/package-spans", n_best=3, **one, **ASKING)
    tune(toys, "labelled", train=train, dev=dev, length=32)
    ask("labels", snapshots(toys.folder / "out/labelled")[0], dev)
    multitask(toys)
    ask("tasks", snapshots(toys.folder / "out/two")[0], dev)
    return items


@group
def decode(toys: Toys) -> Items:
    """The three decodings of fitted heads, the scores on word pieces, and ensembles."""
    heads = ["last_state", "adapter:size=8", "biaffine"]
    fit(toys, "decoded", " ".join(heads), epochs=15)
    folders = {head: folder for head, (folder, _) in fitted(toys.folder / "out/decoded", heads).items()}
    items, flags = Items(), ASKING | {"data": toys.dev}
    for way in ("google", "hf_nbest", "bertvision"):
        out = toys.new(f"eval-{way}")
        asked: dict[str, Any] = flags | {"decoding": way, "scorer": "wordpiece", "source": "memory"}
        rows = bv("eval", *folders.values(), out=out, **asked)
        for head, row in zip(folders, rows, strict=True):
            items[f"{way}/{head}/scores"] = numbers(row)
            items |= {f"{way}/{head}/{k}": v for k, v in written(out / folders[head].name / "eval").items()}
    for how in ("max", "mean", "product"):
        asked = flags | {"how": how}
        rows = bv("ensemble", folders[heads[0]], folders[heads[1]], **asked)
        items[f"ensemble/{how}"] = [numbers(row) for row in rows]
    return items


@group
def run(toys: Toys) -> Items:
    items: Items = {}
    flags = {"source": "memory", "fit_lr": 1e-2, "tune_lr": 1e-3} | SPANS
    del flags["json"]
    heads = ["last_state", "adapter:size=8"]
    for name, (train, dev), asked in (
        ("spans", (toys.train, toys.dev), heads),
        ("labels", toys.labels, ["default"]),
    ):
        out = toys.new(f"run-{name}")
        bv("run", encoder=toys.encoder, train=train, dev=dev, test=dev, out=out, fit_heads=asked, **flags)
        items |= {f"{name}/{system}": scores for system, scores in run_scores(out).items()}
    return items


ODD_ANSWERS = [
    (["The Normans"], "normans"), (["a cat, an owl; the dog!"], "cat owl dog"), (["U.S.A."], "usa"),
    (["well-known"], "well known"), (["Theatre"], "atre"), (["the"], ""), ([" two\t or\u00a0so "], "two or so"),
    (["Beyonc\u00e9"], "Beyonce"), (["Beyonc\u00e9"], "Beyonc\u00c9"), (["\u201cquoted\u201d"], "quoted"),
    (["10th and 11th centuries"], "11th centuries"), (["in the 10th century", "10th century"], "10th century"),
    (["one two three", "three four"], "three two five"), (["word word"], "word"), ([], ""), ([], "something"),
    ([], "the"), (["something"], ""), (["..."], "anything"), (["...", "dots"], "dots"), (["\u6771\u4eac"], "\u6771"),
]  # fmt: skip
"""Accepted answers and a prediction each: articles, punctuation, accents, white space, no answer."""


@group
def score(toys: Toys) -> Items:
    """Official SQuAD scores of odd answers."""
    context, rows = " ".join(text for golds, _ in ODD_ANSWERS for text in golds), []
    for i, (golds, _) in enumerate(ODD_ANSWERS):
        found = [{"text": text, "answer_start": context.index(text)} for text in golds]
        rows.append({"id": f"q{i}", "question": "?", "is_impossible": not golds, "answers": found})
    data, said, odds = (toys.folder / f"{name}.json" for name in ("odd", "said", "odds"))
    data.write_text(
        json.dumps({"data": [{"title": "odd", "paragraphs": [{"context": context, "qas": rows}]}]})
    )
    said.write_text(json.dumps({f"q{i}": text for i, (_, text) in enumerate(ODD_ANSWERS)}))
    odds.write_text(json.dumps({f"q{i}": i * 7 % 11 / 11 for i in range(len(ODD_ANSWERS))}))
    with_odds = {"na_prob": odds, "na_prob_thresh": 0.7}
    return {
        "plain": bv("score", data, said, json=True),
        "odds": bv("score", data, said, json=True, **with_odds),
    }


@group
def published(toys: Toys) -> Items:
    """Official scores of published systems on SQuAD 2.0's dev set, where $BERTVISION_DATA has them."""
    folder, items = Path(os.environ.get("BERTVISION_DATA", "nowhere")) / "squad", Items()
    for said in sorted((folder / "predictions").glob("*.json")):
        found, odds = json.loads(said.read_text()), toys.folder / "odds.json"
        made = {
            key: (i * 7919 % 1009) / 1009 + (0.0 if text else 0.5)
            for i, (key, text) in enumerate(found.items())
        }
        odds.write_text(json.dumps(made))
        items[said.stem] = bv("score", folder / "dev-v2.0.json", said, na_prob=odds, json=True)
    return items


@group
def sizes(toys: Toys) -> Items:
    """Parameters of every head, and of every policy of fine-tuning on BERT-base-cased."""
    items: Items = {}
    for layers, hidden in ((24, 1024), (12, 768)):
        for row in bv("heads", layers=layers, hidden=hidden, json=True):
            counts = [row["parameters"], row["total"], round(row["flops_per_token"])]
            kind = {"token": "span", "window": "label"}[row["unit"]]
            items[f"{layers + 1}x{hidden}/{kind}/{row['head']}"] = counts
    policies = "full none layers top-12 top-6 top-3 top-1 top-0 houlsby-64 houlsby-768 houlsby-64+full houlsby-64+top-6"
    for policy in f"{policies} bitfit lora-16 cut-6".split():
        items[f"policy/{policy}"] = policy_counts(policy)
    return items


@group
def resume(toys: Toys) -> Items:
    """Killed twice and started again: the end is that of the unbroken run, bit for bit."""
    items: Items = {}
    usual = {"train": toys.train, "dev": toys.dev, "checkpoint_seconds": 0} | SPANS
    fitting = {"source": "memory", "heads": ["last_state", "adapter:size=8"], "lr": 1e-2, "epochs": 12}
    cases: list[tuple[str, list[Any], dict[str, Any], tuple[int, ...]]] = [
        ("fit", [toys.encoder], usual | fitting, (2, 12)),
        ("finetune", ["--encoder", toys.encoder], usual | TUNING | {"snapshots": [0.5]}, (3, 9)),
    ]
    for verb, words, flags, kills in cases:
        ends: list[Any] = []
        for out, moments in ((toys.new(f"{verb}-whole"), ()), (toys.new(f"{verb}-killed"), kills)):
            for moment in moments:
                bv(verb, *words, out=out, kill_at=(out / "metrics.jsonl", moment), **flags)
                if not list(out.glob(CHECKPOINT)):
                    raise Failed(f"{verb}: there was no checkpoint when it was killed")
            said = bv(verb, *words, out=out, notes=True, **flags)
            if bool(moments) != bool(RESUMED.search(said)):
                raise Failed(f"{verb} started {'anew' if moments else 'from a checkpoint'}:\n{said}")
            files = [tensors(file) for file in sorted(out.rglob("*.safetensors"))]
            ends.append(((out / "metrics.jsonl").read_text(), files))
        items[f"{verb}/files"] = ends[0][1]
        items[f"{verb}/same log and files"] = [one == other for one, other in zip(*ends, strict=True)]
    return items


# ---- Recording and comparing


def compare(was: Any, now: Any, scale: float = 0.0) -> Iterator[tuple[float, str]]:
    """(relative difference, both values) of everything that is not the same; infinite where it cannot be close."""
    if isinstance(was, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*was, *now)):
            if key not in was or key not in now:
                yield math.inf, f"{key} is {'gone' if key in was else 'new'}"
            elif key != "sha":
                yield from ((far, f"{key}: {text}") for far, text in compare(was[key], now[key]))
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        largest = max((abs(x) for x in was if isinstance(x, float)), default=0.0)
        for one, other in zip(was, now, strict=True):
            yield from compare(one, other, largest)
    elif json.dumps(was) != json.dumps(now):
        far = math.inf
        if isinstance(was, float) and isinstance(now, float) and math.isfinite(was) and math.isfinite(now):
            far = abs(was - now) / max(abs(was), abs(now), scale)
        yield far, f"{was!r} -> {now!r}"


def verdict(was: Any, now: Any) -> tuple[str, str]:
    """same, close or DIFFERENT, and the worst difference."""
    if json.dumps(was) == json.dumps(now):
        return "same", ""
    worst, text = max(compare(was, now), default=(0.0, "other bytes; all values that are kept are the same"))
    count = sum(far > TOLERANCE for far, _ in compare(was, now))
    if worst <= TOLERANCE:
        return "close", f"{worst:.1e}  {text[:150]}"
    return "DIFFERENT", f"{count} values, such as {worst:.1e}  {text[:200]}"


def check(found: Items, kept: Items, groups: list[str]) -> bool:
    """Print the table; whether nothing differs that may not."""
    kept = {key: value for key, value in kept.items() if key.partition("/")[0] in groups}
    if not any(key.startswith("published/") for key in found):
        kept = {key: value for key, value in kept.items() if not key.startswith("published/")}
    tally: dict[str, int] = {}
    for key in dict.fromkeys((*kept, *found)):
        if key not in kept or key not in found:
            kind, text = "DIFFERENT", f"the item is {'gone' if key in kept else 'new'}"
        else:
            kind, text = verdict(kept[key], found[key])
        reason = next((why for pattern, why in ALLOWED.items() if fnmatch.fnmatch(key, pattern)), "")
        if kind == "DIFFERENT" and reason:
            kind, text = "allowed", f"{reason}: {text}"
        tally[kind] = tally.get(kind, 0) + 1
        print(f"{kind:<10} {key}{'  ' if text else ''}{text}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(tally.items())))
    return "DIFFERENT" not in tally


def versions() -> dict[str, str]:
    import torch
    import transformers

    made = {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return made | {
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--record", action="store_true", help="write golden.json instead of comparing with it"
    )
    parser.add_argument("--only", nargs="+", choices=GROUPS, metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--keep", type=Path, help="leave everything that was made in this folder")
    args = parser.parse_args()
    groups, found = args.only or list(GROUPS), Items()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[CACHE_VARIABLE] = str(folder / "cache")
        toys = Toys(folder)
        for name in groups:
            began = time.monotonic()
            found |= {f"{name}/{key}": value for key, value in GROUPS[name](toys).items()}
            print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        made_by = versions()
    old = json.loads(RECORD.read_text()) if RECORD.exists() else {"versions": made_by, "items": {}}
    found = json.loads(json.dumps(found))
    if not args.record:
        if old["versions"] != made_by:
            print(f"note: recorded with {old['versions']}, this is {made_by}", file=sys.stderr)
        sys.exit(0 if check(found, old["items"], groups) else 1)
    # A group that did not run keeps its record, as the published systems do on a machine without their files.
    ran = {key.partition("/")[0] for key in found}
    items = {key: value for key, value in old["items"].items() if key.partition("/")[0] not in ran} | found
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in items.items())
    RECORD.write_text(f'{{\n"versions": {json.dumps(made_by)},\n"items": {{\n{rows}\n}}\n}}\n')
    print(f"{len(items)} items in {RECORD.name}")


if __name__ == "__main__":
    main()
