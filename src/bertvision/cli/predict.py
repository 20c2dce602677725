"""`bertvision predict FOLDER`: answer questions from the command line or a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bertvision.cli.flags import OptionalFloat, OptionalInt, OptionalPath, OptionalText
from bertvision.encoder.encoder import Precision

__all__ = ["ARGS", "PredictArgs", "main"]


@dataclass(frozen=True)
class PredictArgs:
    """Answer questions with a trained head: one with --question and --context, or all of a file with --data."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """What fit, finetune, ensemble or run wrote; a run means its best head."""
    question: OptionalText = None
    """The question to answer; goes with --context."""
    context: OptionalText = None
    """The text to find the answer in."""
    data: OptionalText = None
    """Questions from a SQuAD .json, .jsonl, .csv, hub:NAME[:SPLIT] or demo:test; answers may be missing in it."""
    out: OptionalPath = None
    """With --data: write predictions.json, nbest_predictions.json and null_odds.json here."""
    threshold: OptionalFloat = None
    """No answer is given where its score exceeds the best candidate's by more than this; stored with the head."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    max_examples: OptionalInt = None
    """Take only the first so many questions of --data."""
    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""
    json: bool = False
    """Print the result as JSON."""


ARGS = PredictArgs


def main(args: PredictArgs) -> None:
    import dataclasses

    from bertvision import console
    from bertvision.artifacts import check_output
    from bertvision.data.load import load_span_data
    from bertvision.errors import ConfigError
    from bertvision.serve.load import load
    from bertvision.tasks.span import write_answers

    if (args.data is None) == (args.question is None) or (args.question is None) != (args.context is None):
        raise ConfigError("give --question together with --context, or --data")
    if args.out is not None:
        if args.data is None:
            raise ConfigError("--out goes with --data")
        check_output(args.out)
    data = (
        load_span_data(args.data, max_examples=args.max_examples, answers_required=False)
        if args.data
        else None
    )
    model = load(args.folder, encoder=args.encoder, device=args.device, precision=args.precision)
    if args.threshold is not None:
        model.decoding = dataclasses.replace(model.decoding, null_score_diff_threshold=args.threshold)
    if data is None:
        assert args.question is not None
        assert args.context is not None
        found = {"": model.predict(args.question, args.context)}
        questions = [args.question]
    else:
        answers = model.answer(data)
        found = dict(zip(answers.ids, model.predictions(answers), strict=True))
        questions = [example.question for example in data.examples]
        if args.out is not None:
            write_answers(args.out, answers)
    rows = [
        {"id": key, "question": q, **asdict(p)} for (key, p), q in zip(found.items(), questions, strict=True)
    ]
    if args.json:
        console.emit_json(rows[0] if data is None else rows)
        return
    for row in rows:
        where = f"[{row['start']}:{row['end']}] " if row["text"] else ""
        console.emit(row["question"])
        console.emit(
            f"  {row['text'] or '(no answer)'}  {where}p={row['probability']:.3f}  "
            f"no answer p={row['no_answer_probability']:.3f}"
        )
