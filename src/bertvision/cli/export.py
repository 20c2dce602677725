"""`bertvision export [NAME=]FOLDER ... --out PKG`: an encoder and heads in one folder, to ship."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from bertvision.cli.flags import Result, command_line, refuse
from bertvision.config import part_of
from bertvision.model import CardConfig
from bertvision.options import POSITIONAL, OptionalText, arg


@dataclass(frozen=True, kw_only=True)
class ExportArgs(CardConfig):
    """Put heads and their encoder into one folder, a package, with a card that says what they are: for predict, serve,
    the Hub or as an ONNX graph."""

    sources: Annotated[tuple[str, ...], POSITIONAL, arg(metavar="[NAME=]FOLDER ...")]
    """What fit, finetune, multitask, ensemble or run wrote, or packages; all heads must be of one encoder. Of a run the
    best head is taken. NAME is what the task is called; without it a folder's heads come under names of their own."""
    out: Path
    """The package's folder; an older package there is replaced."""
    bundle_encoder: bool = False
    """Copy the encoder into the package, whatever it is; of a delta its base too."""
    reference: bool = False
    """Name the encoder and copy nothing of it. Without either flag the embedded encoder and those of the Hub are
    named and all others copied."""
    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    onnx: bool = False
    """Write encoder and heads as one ONNX graph too, checked against torch; needs the extra `onnx`."""
    push: OptionalText = None
    """Put the package on the Hub under this name, ORG/NAME."""
    private: bool = False
    """With --push: only its owners may see it."""


def export(args: ExportArgs) -> Result:
    from bertvision.artifacts import check_output
    from bertvision.model.export import check_out, check_push, push_to_hub
    from bertvision.model.load import gather, open_model

    both = "--bundle-encoder and --reference exclude each other: leave one out"
    refuse(
        (args.bundle_encoder and args.reference, both),
        (args.private and args.push is None, "--private goes with --push"),
    )
    if args.push is not None:
        check_push(args.push)
    sources = [_source(text) for text in args.sources]
    check_out(args.out, [Path(folder) for _, folder in sources])
    check_output(args.out.parent)
    model = open_model(gather(sources), args.encoder, device="cpu", precision="fp32")
    result = model.save(
        args.out,
        keep="bundle" if args.bundle_encoder else "reference" if args.reference else "auto",
        onnx=args.onnx,
        card=part_of(CardConfig, args),
        title=args.push.rpartition("/")[2] if args.push else "",
        command=command_line(),
    )
    result["address"] = push_to_hub(args.out, args.push, private=args.private) if args.push else None
    return result, lambda: _show(result)


def _source(text: str) -> tuple[str, str]:
    """The name and the folder of NAME=FOLDER, or of FOLDER, which may hold an equals sign itself."""
    name, equals, folder = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return "", text
    return name, folder


def _show(result: dict[str, Any]) -> None:
    from bertvision import console

    console.emit(f"{result['folder']}: {console.size_text(result['bytes'])}")
    for task, about in result["tasks"].items():
        also = f", readers of {about['layers']} layers" if about["layers"] else ""
        console.emit(f"  {task}: {about['kind']}, {about['label']}{also}")
    encoder = result["encoder"]
    kept = "in the package" if encoder["bundled"] else "by reference"
    console.emit(f"  encoder {encoder['name']} {kept}, fingerprint {encoder['fingerprint'][:12]}")
    if result["onnx"]:
        console.emit(f"  onnx: at most {result['onnx']['max_difference']:.1e} from torch")
    if result["address"]:
        console.emit(f"  {result['address']}")
