"""`bertvision cache info STORE`: everything one store says about itself."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from bertvision.cli.cache import texts
from bertvision.cli.cache.texts import StoreArgs
from bertvision.console import size_text
from bertvision.states.catalogue import find_entry

_SHOWN = 20
"""Missing files that are named."""


@dataclass(frozen=True)
class InfoArgs(StoreArgs):
    """Show what a store holds: encoder, data, window settings, layers, shards."""

    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="STORE")]
    """Its key, the beginning of it, or its folder."""


def info(args: InfoArgs) -> None:
    from bertvision import console

    entry = find_entry(args.root, args.name)
    facts, missing = texts.row(entry), entry.missing
    if args.json:
        console.emit_json(facts | {"missing": missing, "plan": entry.plan})
        return
    # All that the plan holds, the settings of windows and the weights' fingerprint among it.
    identity = entry.plan.get("identity", {})
    named = ", ".join(missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
    facts |= {"weights": identity.get("encoder")} | identity.get("preprocessing", {})
    facts |= {"bytes": size_text(entry.nbytes), "missing": f"{len(missing)}: {named}" if missing else ""}
    facts["damaged"] = facts.pop("damage")
    facts |= {"last used": f"{texts.age(entry.age)} ago", "age_seconds": None}
    for name, value in facts.items():
        if value not in (None, ""):
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            console.emit(f"{name.replace('_', ' '):<18} {text}")
