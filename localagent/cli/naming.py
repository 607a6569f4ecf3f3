"""What a person types for a model, and what `load` takes for it.

A name is tried as an alias, as a name of the catalogue, as a path, as a repository of Hugging Face, and at
last as the beginning of a name, if only one begins like that. Nothing here uses the network.

The default model and the aliases are kept in `models.json` in $LOCALAGENT_HOME, or in the user's folder for
configuration.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from localagent.errors import UnknownModel, UsageError
from localagent.files.paths import cannot_save, replace_file, user_path
from localagent.remote.address import is_address
from localagent.wording import listed, quoted

if TYPE_CHECKING:
    from localagent.hosts.backends import BackendName

VARIABLE = "LOCALAGENT_MODEL"

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:/(?:blob|resolve)/main/([^?#]+))?/?(?:[?#].*)?"
)
_ALIAS = re.compile(r"[a-z0-9][a-z0-9._-]*")

Ask = Callable[[str, Sequence[str]], str | None]
"""Lets a person choose one of several names: gets a question and the names; None: none of them."""


def resolve(text: str, *, ask: Ask | None = None) -> str:
    """The model that `text` means, as `load` takes it: a name of the catalogue, a path, or `hf:...`.

    `ask` is called where several names begin with `text`. Raises UnknownModel, which names what comes near.
    """
    name = text.strip()
    if not name:
        raise UnknownModel("the model name is empty: `localagent models list --all` shows all models")
    target = Preferences.read().aliases.get(name.lower())
    return _resolved(name if target is None else target, ask)


def default_model(backend: BackendName | None = None) -> str:
    """The model to use where none is named: LOCALAGENT_MODEL, else `models default`, else this machine's.

    Raises UnknownModel, which says who named it.
    """
    variable, kept = os.environ.get(VARIABLE, "").strip(), Preferences.read().default or ""
    for name, who, back in (
        (variable, VARIABLE, f"unset {VARIABLE}"),
        (kept, "`localagent models default`", "`localagent models default --forget`"),
    ):
        if name:
            try:
                return resolve(name)
            except UsageError as error:
                raise UnknownModel(f"{who} names the model: {error}; {back} goes back") from error
    from localagent.catalog import load_catalog

    return load_catalog().default_for(backend).name


def known_default(say: Callable[[str], None]) -> str | None:
    """As `default_model`, for what goes on without one; None, and a warning, where none can be told."""
    try:
        return default_model()
    except UsageError as error:
        say(f"warning: {error}")
        return None


def absolute(model: str) -> str:
    """The same model from any folder: a path becomes absolute, a name stays as it is."""
    from localagent.catalog import HUB, load_catalog

    named = model in load_catalog() or model.startswith(HUB) or is_address(model)
    return model if named else str(Path(model).expanduser().absolute())


def names() -> list[str]:
    """The names that `resolve` knows without a path, for completion: the aliases, then the catalogue."""
    from localagent.catalog import load_catalog

    return [*sorted(Preferences.read().aliases), *load_catalog().names]


def model_and_words(model: str | None, words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The model and the prompt: a first word that can only mean a model names it, unless `model` does.

    That is a whole name or an alias, or a repository with `hf:`; the beginning of a name may be a word.
    """
    if model is not None or not words:
        return model, words
    from localagent.catalog import HUB

    first = words[0]
    is_model = " " not in first and (first.startswith(HUB) or first.lower() in names())
    return (first, words[1:]) if is_model else (model, words)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The models that a person chose: the default, and other names for models."""

    default: str | None = None
    aliases: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def file() -> Path:
        """Where they are kept. Raises UsageError."""
        return user_path("config", "models.json")

    @classmethod
    def read(cls) -> Preferences:
        """What is kept; nothing where there is no file. Raises UsageError for a file that is damaged."""
        path = cls.file()
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return cls()
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} cannot be read ({error}): mend it or remove it") from error
        kept = body if isinstance(body, dict) else {}
        default, aliases = kept.get("default"), kept.get("aliases", {})
        fits = isinstance(aliases, dict) and all(isinstance(each, str) for each in [*aliases.values()])
        if not (isinstance(body, dict) and fits and isinstance(default, str | None)):
            raise UsageError(f"{path} does not hold a default and aliases: mend it or remove it")
        return cls(default, aliases)

    def write(self) -> None:
        """Keep them. Raises SaveFailed."""
        path = self.file()
        body = {"default": self.default, "aliases": dict(sorted(self.aliases.items()))}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, (json.dumps(body, indent=1) + "\n").encode())
        except OSError as error:
            raise cannot_save(path, error) from error


def check_alias(name: str) -> str:
    """The alias as it is kept. Raises UsageError for a name that could not be typed, or is a model's."""
    from localagent.catalog import load_catalog

    alias = name.strip().lower()
    if not _ALIAS.fullmatch(alias):
        raise UsageError(
            f"{quoted(name)} cannot be an alias: use letters, digits, dots, hyphens and underscores"
        )
    if alias in load_catalog():
        raise UsageError(f"{alias} is a model of the catalogue: choose another name")
    return alias


def _resolved(name: str, ask: Ask | None) -> str:
    from localagent.catalog import HUB, load_catalog

    catalog = load_catalog()
    if name.lower() in catalog:
        return name.lower()
    if is_address(name):
        return name
    if page := _PAGE.fullmatch(name):
        name = f"{HUB}{page[1]}" + (f":{page[2]}" if page[2] else "")
    if name.lower().startswith(HUB):
        return HUB + name[len(HUB) :].strip()
    if _exists(name):
        return name
    looks_like_a_path = name.startswith((".", "/", "~")) or name.endswith(".gguf") or "\\" in name
    if looks_like_a_path:
        raise UnknownModel(f"no such file or folder: {name}")
    if "/" in name:
        return _of_repository(name)
    fitting = [each for each in names() if each.startswith(name.lower())]
    if len(fitting) > 1 and ask is not None:
        chosen = ask(f"Several models begin with {name}", fitting)
        fitting = [chosen] if chosen else []
    if len(fitting) == 1:
        return Preferences.read().aliases.get(fitting[0], fitting[0])
    raise _unknown(name, fitting)


def _of_repository(name: str) -> str:
    """The model of the catalogue whose weights are in that repository. Raises UnknownModel."""
    from localagent.catalog import HUB, HubSource, load_catalog

    for spec in load_catalog():
        for source in spec.sources.values():
            if isinstance(source, HubSource) and source.repo.lower() == name.lower():
                return spec.name
    hub = f": a repository of Hugging Face is {HUB}{name}" if _REPOSITORY.fullmatch(name) else ""
    raise UnknownModel(f"no such file or folder: {name}{hub}")


def _unknown(name: str, fitting: Sequence[str]) -> UnknownModel:
    if fitting:
        return UnknownModel(
            f"several models begin with {quoted(name)}: {listed(fitting, 8)}: write one of them"
        )
    known, low = names(), name.lower()
    near = difflib.get_close_matches(low, known, n=3) or [each for each in known if low in each][:3]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownModel(f"no model {quoted(name)}: {hint}`localagent models list --all` shows all models")


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a NUL in it
        return False
