"""`bertvision export [NAME=]FOLDER ... --out PKG`: an encoder and heads in one folder, to ship."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertvision.cli.flags import Result, command_line, refuse
from bertvision.data.texts import Columns
from bertvision.options import POSITIONAL, OptionalText, arg

if TYPE_CHECKING:
    from bertvision.model.export import Exported
    from bertvision.model.model import Model


@dataclass(frozen=True)
class ExportArgs:
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
    layers: tuple[Path, ...] = ()
    """Folders with readers of layers (`fit --heads each_layer`) for the page to look inside with; those that were
    fitted beside the heads come along by themselves."""
    onnx: bool = False
    """Write encoder and heads as one ONNX graph too, checked against torch; needs the extra `onnx`."""
    push: OptionalText = None
    """Put the package on the Hub under this name, ORG/NAME."""
    private: bool = False
    """With --push: only its owners may see it."""
    license: str = ""
    """The licence of the weights as the Hub names it (apache-2.0, cc-by-sa-4.0, ...); none is set by default."""
    datasets: tuple[str, ...] = ()
    """Names on the Hub of the data sets the heads were trained on, for the card."""
    scored_on: tuple[str, ...] = ()
    """The data the heads were scored on, as --dev of fit takes it: the card's scores get intervals from it. Files that
    still lie where they were are found without."""
    text: Columns = field(default_factory=Columns)


_LISTS = ("--layers", "--datasets", "--scored-on")
"""Flags that several words follow."""


def export(args: ExportArgs) -> Result:
    from bertvision.artifacts import check_output
    from bertvision.model.config import CardConfig
    from bertvision.model.export import check_out
    from bertvision.model.hub import check_reachable, check_repo, push_to_hub
    from bertvision.model.load import gather

    _check(args)
    if args.push is not None:
        check_repo(args.push)
        check_reachable(args.push)
    sources = [_source(text) for text in args.sources]
    check_out(args.out, [*(Path(folder) for _, folder in sources), *args.layers])
    check_output(args.out.parent)
    card = CardConfig(
        license=args.license,
        datasets=args.datasets,
        scored_on=args.scored_on,
        columns=args.text,
        commands=(command_line(),),
    )
    model = gather(sources, layers=args.layers).open(args.encoder, device="cpu", precision="fp32")
    made = model.save(
        args.out,
        keep="bundle" if args.bundle_encoder else "reference" if args.reference else "auto",
        onnx=args.onnx,
        card=card,
        title=args.push.rpartition("/")[2] if args.push else "",
    )
    address = push_to_hub(args.out, args.push, private=args.private) if args.push is not None else None
    result = _result(model, made, address)
    return result, lambda: _show(result)


def _source(text: str) -> tuple[str, str]:
    """The name and the folder of NAME=FOLDER, or of FOLDER, which may hold an equals sign itself."""
    name, equals, folder = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return "", text
    return name, folder


def _check(args: ExportArgs) -> None:
    """Refuse flags that do not go together."""
    local = args.encoder and Path(args.encoder).is_dir()
    refuse(
        (
            not args.sources,
            "export needs a folder: give what fit, finetune, multitask, ensemble or run wrote",
        ),
        *(
            (
                sum(word.partition("=")[0] == flag for word in sys.argv) > 1,
                f"{flag} is given twice, and the last would count: write all behind one {flag}",
            )
            for flag in _LISTS
        ),
        (
            args.bundle_encoder and args.reference,
            "--bundle-encoder and --reference exclude each other: leave one out",
        ),
        (args.private and args.push is None, "--private goes with --push"),
        (
            args.push is not None and args.reference and local,
            "--push needs an encoder that others can get: leave out --reference",
        ),
    )


def _result(model: "Model", made: "Exported", address: str | None) -> dict[str, Any]:
    package, onnx = made.package, made.onnx
    files = [path for path in package.folder.rglob("*") if path.is_file()]
    return {
        "folder": str(package.folder),
        "bytes": sum(path.stat().st_size for path in files),
        "encoder": {"name": package.encoder, "fingerprint": package.fingerprint, "bundled": package.bundled},
        "tasks": {
            name: {
                "kind": system.task.kind,
                "label": made.labels[name],
                "layers": len(package.layers.get(name, ())),
            }
            for name, system in model.systems.items()
        },
        "onnx": None if onnx is None else {"max_difference": onnx.max_difference, "bytes": onnx.bytes},
        "address": address,
    }


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
