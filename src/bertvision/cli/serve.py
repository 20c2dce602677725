"""`bertvision serve FOLDER`: answers over HTTP, and the page that looks inside."""

import ipaddress
import logging
import signal
import sys
from dataclasses import dataclass
from typing import Annotated

from bertvision.config import part_of
from bertvision.model import ModelConfig
from bertvision.options import POSITIONAL, OptionalPath, arg
from bertvision.serve.config import ServeConfig


@dataclass(frozen=True, kw_only=True)
class Serve(ModelConfig, ServeConfig):
    """Answer over HTTP what `predict` answers, with a page at / that looks inside. Only this machine can ask, unless
    --host says otherwise; then give it a key."""

    folder: Annotated[str, POSITIONAL, arg(metavar="FOLDER")]
    """A package of `export`, or what fit, finetune, multitask, ensemble or run wrote."""
    api_key_file: OptionalPath = None
    """A file with the key that requests must carry (Authorization: Bearer KEY); else BERTVISION_API_KEY, else none."""


def serve(args: Serve) -> None:
    from bertvision.serve.config import check_extra, read_key

    check_extra()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # also while the model is loaded

    from bertvision import console
    from bertvision.model.load import load
    from bertvision.serve.app import create_app, listen, serve

    key, (listener, url) = read_key(args.api_key_file), listen(args)
    with listener:
        model = load(args.folder, **vars(part_of(ModelConfig, args)))
        # Clients decide how long texts are; a warning for each text that is cut would let them fill the log.
        logging.getLogger("bertvision.data").setLevel(logging.ERROR)
        app = create_app(model, args, key=key)
        if key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            warning = "anyone who reaches %s can ask: give a key with --api-key-file"
            logging.getLogger("bertvision").warning(warning, url)
        console.emit(f"{', '.join(model.systems)} at {url}")
        serve(app, listener, args)
