"""Fixtures shared by all tests: the shared data, tiny encoders, toy data, one torch thread a worker."""

import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bertvision.encoder.encoder import Encoder

# Two busy processes on two cores slow encoding thirtyfold, so every worker (and every process it
# starts) gets one thread; set before torch is imported anywhere.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

from fit_helpers import fixture_encoder, fixture_states, fixture_train  # noqa: E402, F401
from tuning_helpers import fixture_lively, fixture_no_dropout, fixture_three_layers  # noqa: E402, F401


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep windows of tests out of the user's cache."""
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True, scope="session")
def listens_to_sigint() -> Iterator[None]:
    """A shell starts background jobs deaf to SIGINT, and Python then keeps it so; the tests must not depend on it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def fresh_logger() -> None:
    """Undo what a command line run inside a test process did to the library's logger: `caplog` reads it."""
    logger = logging.getLogger("bertvision")
    logger.handlers[:], logger.propagate = [], True
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, named by BERTVISION_DATA."""
    folder = os.environ.get("BERTVISION_DATA")
    if not folder:
        pytest.skip("BERTVISION_DATA does not name the shared data")
    return Path(folder)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every attempt to open a connection fails and is written down here."""
    attempts: list[Any] = []

    def refuse(*args: Any, **_: Any) -> None:
        attempts.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


@pytest.fixture(scope="session")
def toy_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a tiny random encoder of any architecture: `toy_encoder("roberta")`."""
    from toy import save_encoder

    made: dict[str, Path] = {}

    def make(architecture: str) -> Path:
        if architecture not in made:
            folder = tmp_path_factory.mktemp("encoders") / architecture
            made[architecture] = save_encoder(folder, architecture)
        return made[architecture]

    return make


@pytest.fixture(scope="session")
def tiny_bert(toy_encoder: Callable[[str], Path]) -> Path:
    """BERT with two layers of 32 features, two attention heads, token types and a pooler."""
    return toy_encoder("bert")


@pytest.fixture(scope="session")
def encoder(tiny_bert: Path) -> "Encoder":
    from bertvision.encoder.encoder import Encoder

    return Encoder.load(str(tiny_bert))


@pytest.fixture
def calls(encoder: "Encoder", monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each call of an encoder had."""
    made: list[int] = []
    real = type(encoder).layer_states

    def counted(self: "Encoder", batch: Any) -> Any:
        made.append(len(batch.windows))
        return real(self, batch)

    monkeypatch.setattr(type(encoder), "layer_states", counted)
    return made


@pytest.fixture(scope="session")
def toy_squad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 questions in SQuAD 2.0 form, a third of them unanswerable, over 8 paragraphs, one of them long."""
    from toy import squad_json

    path = tmp_path_factory.mktemp("data") / "toy.json"
    path.write_text(json.dumps(squad_json()), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, toy_squad: Path) -> Path:
    """What `bertvision run` writes for the toy data: a folder to read, not to change."""
    from cli_runner import TINY, bertvision

    folder = tmp_path_factory.mktemp("runs") / "toy"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        outcome = bertvision(
            "run", "--encoder", tiny_bert, "--train", toy_squad, "--dev", toy_squad, "--out", folder, *TINY
        )  # fmt: skip
    assert outcome.code == 0, outcome.err
    return folder
