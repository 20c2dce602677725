"""Packages on the Hugging Face Hub: `push_to_hub(folder, "ORG/NAME")`, and back with `bv.load("hub:ORG/NAME")`.

Who may write there is the business of huggingface_hub (`hf auth login`); nothing of it is read or kept here. What was
fetched once is kept in its cache and found again without a network. "hub:ORG/NAME@REVISION" is one commit or branch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bertvision.data.hub import hub_unreachable
from bertvision.errors import ArtifactError, ConfigError, OutputError
from bertvision.model.folders import PACKAGE, is_package
from bertvision.model.package import known_anywhere, read_package

HUB = "hub:"
_FILES = [
    PACKAGE,
    "*.json",
    "*.txt",
    "*.model",
    "*.safetensors",
    "*.onnx",
    "*.onnx.data",
    "README.md",
]
"""What a package is made of; whatever else somebody put into the repository is not fetched."""


def local_folder(name: str | Path) -> Path:
    """The folder that `name` means: itself, or where the package of the Hub was put."""
    # A path writes hub:ORG/NAME in the same way; on disk a name with a colon would be written ./hub:...
    text = str(name)
    return _fetch(text.removeprefix(HUB)) if text.startswith(HUB) else Path(name)


def check_repo(repo: str, *, flag: str = "--push") -> None:
    """Refuse what cannot be a name on the Hub."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"{flag} {repo!r} is no name on the Hub: write ORG/NAME") from error
    if repo.count("/") != 1:
        raise ConfigError(f"{flag} {repo!r} is no name on the Hub: write ORG/NAME")


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repo, _, revision = name.partition("@")
    check_repo(repo, flag="the package hub:")
    local = hub_unreachable()
    way_out = "check its name, and whether you may read it (`hf auth login`)"
    if local:
        way_out = "fetch it once with a network, or give a folder"
    why = "there is no network and it is not in the local cache" if local else ""
    with _explained(f"cannot load {HUB}{name}", way_out, ArtifactError, why=why):
        place = snapshot_download(
            repo, revision=revision or None, allow_patterns=_FILES, local_files_only=local
        )
    if not is_package(place):
        raise ArtifactError(f"{HUB}{name} is not a package, it has no {PACKAGE}: name one that export pushed")
    return Path(place)


def check_reachable(repo: str) -> None:
    """Refuse to push where nothing answers; asked before a package is made for it too."""
    if hub_unreachable():
        raise OutputError(
            f"cannot push to {repo}: the Hub cannot be reached; check the network and try again"
        )


def push_to_hub(folder: str | Path, repo: str, *, private: bool = False) -> str:
    """Put a package on the Hub as `repo` ("ORG/NAME"), in one commit; returns its address.

    Args:
        private: Whether a repository that has to be made is for its owners alone.
    """
    package = read_package(folder)
    check_repo(repo)
    if package.encoder_folder is None and not known_anywhere(package.encoder):
        raise ConfigError(
            f"the encoder of {folder} is a folder on this machine, which nobody else has: "
            "export the package with --bundle-encoder"
        )
    check_reachable(repo)
    from huggingface_hub import HfApi

    with _explained(f"cannot push to {repo}", "check its name, and `hf auth login`", OutputError):
        api = HfApi()
        address = api.create_repo(repo, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=address.repo_id,
            folder_path=package.folder,
            allow_patterns=_FILES,
            # What an older package had and this one has not would else stay there and be served.
            delete_patterns=["encoder/*", "heads/*", "layers/*", "onnx/*"],
            commit_message=f"bertvision package of {', '.join(package.tasks)}",
        )
    return str(address)


@contextmanager
def _explained(
    what: str, way_out: str, kind: type[ArtifactError] | type[OutputError], *, why: str = ""
) -> Iterator[None]:
    """Turn the ways in which the Hub refuses into one sentence; `why` where it is known already."""
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise kind(f"{what} ({why or lines[0].rstrip('. ')}): {way_out}") from error
