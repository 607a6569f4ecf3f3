"""Settings and the real weights, for every test."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.engineless import sitecustomize

# Nothing here imports localagent before it is asked for: tests/parsers runs where there is none.
if TYPE_CHECKING:
    from localagent.model import Model

# `make test` has just tried the engines; tests with a home of their own would all do it again.
os.environ["LOCALAGENT_ENGINE_CHECK"] = "0"
# Threads of llama.cpp that wait for each other in a loop take ten times as long where another test, or anything
# else, has the other core. OpenMP reads this once, when it is loaded; processes that tests start inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A shell that runs the tests in the background has Ctrl-C ignored, in all that they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
settings.register_profile("fast", max_examples=20, deadline=None, suppress_health_check=slow)
settings.register_profile("short", max_examples=100, deadline=None, suppress_health_check=slow)
# A change is judged by the same examples each time; everywhere else they are drawn anew.
settings.register_profile("ci", settings.get_profile("short"), derandomize=True)
settings.register_profile("long", max_examples=3000, deadline=None, suppress_health_check=slow)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "short")
settings.load_profile(PROFILE)
LONG = PROFILE == "long"
"""`make test-long`: more of all that is drawn at random, killed, or asked of a model."""


def schedules(long: int, short: int) -> range:
    """The numbers of the random schedules to run; by hand SCHEDULES=2000, or 500-1000 for a part of them."""
    asked = os.environ.get("SCHEDULES", str(long if LONG else short)).split("-")
    return range(int(asked[0]) if len(asked) > 1 else 0, int(asked[-1]))


# Each worker of pytest-xdist notes what it loads, so that one that dies is named by more than its test.
NOTES = Path(os.environ.setdefault("LOCALAGENT_TEST_NOTES", tempfile.mkdtemp(prefix="localagent-notes-")))
if worker := os.environ.get("PYTEST_XDIST_WORKER"):
    os.environ["LOCALAGENT_LOADED_NOTE"] = str(NOTES / worker)  # read by localagent.hosts.host

WITH_A_MODEL = {"gguf", "nano", "model", "real_weights"}


class Engines:
    """Hides the engines from tests that are not marked `engine`, which run first."""

    def __init__(self) -> None:
        self._hidden = False
        self._path = os.environ.get("PYTHONPATH", "")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark what uses a model, and let it come last."""
        for item in items:
            if WITH_A_MODEL & set(getattr(item, "fixturenames", ())):
                item.add_marker("engine")
        items.sort(key=lambda item: item.get_closest_marker("engine") is not None)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """A test without the mark that needs an engine fails here, and not only under `make test-core`."""
        hide = item.get_closest_marker("engine") is None
        if hide != self._hidden:
            self._hidden = hide
            (sitecustomize.hide if hide else sitecustomize.show)()
            folder = str(Path(sitecustomize.__file__).parent) if hide else ""
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, self._path)))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Engines())


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: Any) -> None:
    """Say which model, engine and processor it was when a worker dies."""
    from localagent.engines.children import describe_death, read_loaded

    loaded = read_loaded(NOTES / report.node.gateway.id)
    report.longrepr = f"{report.longrepr}: it {describe_death(None, loaded)}"


@pytest.fixture(scope="session")
def gguf() -> Path:
    """The embedded default model, pulled once into the user's own cache."""
    from localagent.catalog import load_catalog
    from localagent.store import WeightStore

    return WeightStore().pull(load_catalog().default, "llamacpp")


@pytest.fixture(scope="session")
def nano() -> dict[str, Path]:
    """lfm2-nano in each of its forms, by backend."""
    from localagent.catalog import PathSource, load_catalog

    sources = load_catalog().get("lfm2-nano").sources.items()
    return {engine: source.path for engine, source in sources if isinstance(source, PathSource)}


@pytest.fixture(scope="session")
def model(gguf: Path) -> Iterator[Model]:
    """The default model, loaded as a user loads it."""
    from localagent.model import load

    with load(context=1024) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A real browser, where there is one: Debian's `chromium`, driven by `playwright`."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("there is no chromium here")
    with sync_api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()
