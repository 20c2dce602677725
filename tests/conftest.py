"""Fixtures shared by all tests: the shared data, tiny encoders, one torch thread a worker."""

import os
from pathlib import Path

import pytest

# Two busy processes on two cores slow encoding thirtyfold, so every worker (and every process it
# starts) gets one thread; set before torch is imported anywhere.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep windows of tests out of the user's cache."""
    monkeypatch.setenv("BERTVISION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, named by BERTVISION_DATA."""
    folder = os.environ.get("BERTVISION_DATA")
    if not folder:
        pytest.skip("BERTVISION_DATA does not name the shared data")
    return Path(folder)
