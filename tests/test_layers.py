"""Imports go one way and never in a circle, engines stay in their own files, and importing does no work."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from localagent.hosts.backends import BACKENDS

ROOT = Path(__file__).parents[1]

# The modules and packages of localagent, lowest first. Each layer may import the ones before it, and itself.
LAYERS = [
    {"parsers"},
    {"distribution", "errors", "files", "settings", "transport", "wording"},
    {"messages"},
    {"prompt", "tools"},
    {"detection", "wire", "hosts"},
    {"catalog", "control"},
    {"constraint"},
    {"store"},
    {"engines"},
    {"turn"},
    {"chat_model"},
    {"model", "remote"},
    {"log", "nano", "session"},
    {"mcp", "toolbox"},
    {"agent"},
    {"connect"},
    {"server"},
    {"cli", "__main__"},
]
BENCH = "benchmarks/localagent_bench"
# Who may import an engine: one file of its own, and what compares it with itself, in a process of its own.
ENGINES: dict[str, set[str]] = {
    "mlx": {f"{BENCH}/harness/bare_loops.py"},
    "mlx_lm": {
        f"{BENCH}/parsers/adapters/mlx_lm.py",
        f"{BENCH}/harness/bare_loops.py",
        f"{BENCH}/harness/servers.py",
    },
    "transformers": {f"{BENCH}/parsers/adapters/transformers.py"},
    "torch": {f"{BENCH}/training/{name}.py" for name in ("export", "muon", "network", "train")},
}
for name, row in BACKENDS.items():
    for package in row.packages:
        ENGINES.setdefault(package, set()).add(f"localagent/hosts/{name}/library.py")
# Imported where they are used, and not before.
LAZY = {
    *(
        "filelock",
        "httpcore2",
        "httpx2",
        "huggingface_hub",
        "llguidance",
        "lxml",
        "numpy",
        "prompt_toolkit",
        "rich",
        "ruamel",
    ),
}
EXTENDS = {
    "localagent.cli.show.blocks": {"rich"},
    "localagent.transport": {"httpcore2", "httpx2"},
    **{f"localagent_bench.training.{name}": {"torch"} for name in ("muon", "network", "train")},
    **{f"localagent_bench.fleet.{name}": {"numpy"} for name in ("simulation", "service_times", "real_fleet")},
}
"""Modules whose classes extend those of a library, or that are nothing without it."""
# What the extra `mcp` brings, and only localagent.mcp may import; the extra `grammar` brings some of it, too.
OF_MCP = {"mcp", "mcp_types", "anyio", "jsonschema", "referencing"}


def name_of(path: Path) -> str:
    """The module in a file; a package is named by its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts[path.is_relative_to(ROOT / "benchmarks") :]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    # By the name that localagent imports them by, through the link localagent/parsers.
    name_of(path).replace("parsers", "localagent.parsers", top == "parsers"): path
    for top in ("localagent", "parsers", BENCH)
    for path in (ROOT / top).rglob("*.py")
}


@cache
def imports(path: Path) -> list[tuple[str, bool]]:
    """What a module imports, and whether it does so when it is itself imported."""
    tree = ast.parse(path.read_text())
    lazy = {
        node
        for outer in ast.walk(tree)
        if isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef))
        or (isinstance(outer, ast.If) and "TYPE_CHECKING" in ast.unparse(outer.test))
        for node in ast.walk(outer)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node not in lazy) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # Absolute in localagent; relative in the parsers, which have several names.
            assert bool(node.level) <= path.is_relative_to(ROOT / "parsers"), f"{path}: relative import"
            package = path.parents[node.level - 1].relative_to(ROOT).parts if node.level else ()
            base = ".".join([*(["localagent"] if package else []), *package, *filter(None, [node.module])])
            modules = (f"{base}.{alias.name}" for alias in node.names)
            found += [(name if name in MODULES else base, node not in lazy) for name in modules]
    return found


def layer(module: str) -> int:
    name = module.split(".")[1]
    return next(number for number, names in enumerate(LAYERS) if name in names)


def test_the_layers_are_the_modules_that_there_are():
    named = [name for names in LAYERS for name in names]
    assert sorted(named) == sorted({name.split(".")[1] for name in MODULES if name.startswith("localagent.")})


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_one_way(name):
    path = MODULES[name]
    for module, _ in imports(path):
        top = module.split(".")[0]
        if name.startswith("localagent.parsers"):
            ours = module.startswith("localagent.parsers")
            assert ours or top in sys.stdlib_module_names, f"{name} imports {module}"
        elif name.startswith("localagent."):
            assert top != "localagent_bench", f"{name} imports {module}"
            if top == "localagent" and "." in module:
                assert layer(module) <= layer(name), f"{name} imports {module}"
        if top in OF_MCP:
            assert name.startswith(("localagent.mcp.", "localagent.constraint.validation")), (
                f"{name} imports {module}"
            )
        if top == "ray":
            assert name.startswith(("localagent.server.fleet.", "localagent.cli.fleet")), (
                f"{name} imports {module}"
            )
        if top in ENGINES:
            assert path.relative_to(ROOT).as_posix() in ENGINES[top], f"{name} imports {module}"


def test_an_engines_folder_is_known_to_the_table_alone():
    """What hosts share knows no engine. The tokenizers of remote models may be in GGUF files, which llama.cpp reads."""
    folders = {name: f"localagent.hosts.{name}" for name in BACKENDS}
    knowing = {
        name
        for name in MODULES
        for folder in folders.values()
        if name.startswith("localagent.hosts.") and not name.startswith(folder)
        for module, _ in imports(MODULES[name])
        if module.startswith(folder)
    }
    assert knowing == {"localagent.hosts.backends"}


def test_no_modules_import_each_other_in_a_circle():
    """Lazy imports count, and those for type checkers, since whoever reads one module must read them all."""
    graph = {name: {each for each, _ in imports(path)} & MODULES.keys() for name, path in MODULES.items()}

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    beyond = {name: reached(name) for name in graph}
    cycles = {
        frozenset(other for other in beyond[name] if name in beyond[other])
        for name in graph
        if name in beyond[name]
    }
    ways = [f"{name} -> {sorted(graph[name] & cycle)}" for cycle in cycles for name in sorted(cycle)]
    assert not cycles, "\n".join(ways)


def test_the_grammars_of_formats_import_one_way():
    """Those that families share are in folders: none of them knows a family, nor do two folders know each other."""
    root = "localagent.parsers.formats."
    folders = {path.parent.name for path in (ROOT / "parsers/formats").glob("*/__init__.py")}
    graph: dict[str, set[str]] = {folder: set() for folder in folders}
    for name, path in MODULES.items():
        if name.startswith(root) and (folder := name.removeprefix(root).split(".")[0]) in folders:
            ours = {module for module, _ in imports(path) if module.startswith(root)}
            graph[folder] |= {module.removeprefix(root).split(".")[0] for module in ours} - {folder}
    assert set().union(*graph.values()) <= folders
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize("name", MODULES)
def test_engines_and_heavy_libraries_are_imported_lazily(name):
    eager = {module.split(".")[0] for module, at_import in imports(MODULES[name]) if at_import}
    assert not eager & {*ENGINES, *OF_MCP, *LAZY} - EXTENDS.get(name, set())


def test_what_extends_a_library_is_itself_imported_lazily():
    loaded = run_python("-c", "import localagent.cli.show.live, sys; print(*sys.modules)").split()
    assert not {*EXTENDS, "rich", "pygments"} & {*loaded}


# Parts that everything else runs without, and the only modules outside that may import each, when it is used.
OPTIONAL = {
    "localagent.server.fleet": {"localagent.cli.fleet"},
    "localagent.cli.fleet": {"localagent.cli.app"},
    "localagent.connect": {"localagent.cli.connect", "localagent.cli.completing"},
    "localagent.cli.connect": {"localagent.cli.app"},
    "localagent.engines.build": set(),  # a program of its own, which `make setup` runs
}


@pytest.mark.parametrize("part", OPTIONAL)
def test_optional_parts_are_imported_by_their_command_alone_and_lazily(part):
    def inside(module: str) -> bool:
        return module == part or module.startswith(f"{part}.")

    for name, path in MODULES.items():
        uses = [eager for module, eager in imports(path) if inside(module)]
        if (
            uses and not inside(name) and not name.startswith("localagent_bench")
        ):  # which measures all of them
            assert name in OPTIONAL[part], f"{name} imports {part}"
            assert not any(uses), f"{name} imports {part} before it is used"


@pytest.mark.parametrize("name", MODULES)
def test_no_module_uses_what_is_private_to_another(name):
    """Neither by an import, nor by an attribute of what was imported."""
    tree = ast.parse(MODULES[name].read_text())
    ours: set[str] = set()
    used: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("localagent")):
            ours |= {alias.asname or alias.name for alias in node.names}
            used += [part for alias in node.names for part in [*(node.module or "").split("."), alias.name]]
    used += [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ours
    ]
    assert not [word for word in used if word.startswith("_") and not word.endswith("__")]


def run_python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_parsers_need_nothing_installed():
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from parsers import *;"
        "p = StreamParser(DIALECTS['lfm2']);"
        "print(collect(p.feed('<|tool_call_start|>[f(a=1)]<|tool_call_end|>') + p.close()))"
    )
    assert "arguments={'a': 1}" in run_python("-S", "-I", "-c", code)


def test_the_tests_of_the_parsers_need_no_localagent():
    """As `make test-parsers` runs them, with fewer examples."""
    settings = {**os.environ, "PARSERS_ALONE": "1", "HYPOTHESIS_PROFILE": "fast"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/parsers"]
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_help_imports_no_engine_and_no_model_code():
    code = "import sys; sys.argv = ['localagent', '--help'];\nfrom localagent.cli import main\ntry: main()\nexcept SystemExit: print(*sys.modules)"
    loaded = set(run_python("-c", code).split())
    assert "typer" in loaded
    assert not loaded & {
        *ENGINES,
        *OF_MCP,
        "pydantic",
        "rich",
        "jinja2",
        "numpy",
        "huggingface_hub",
        "prompt_toolkit",
        "localagent_bench",
    }


def test_every_test_file_says_which_rule_it_holds():
    for path in (ROOT / "tests").rglob("test_*.py"):
        said = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert len(said.split()) >= 5, path


def test_a_public_method_is_described_where_it_is_first_declared():
    """What overrides it keeps that contract, and may say nothing."""
    functions = ast.FunctionDef, ast.AsyncFunctionDef
    classes: dict[str, list[ast.ClassDef]] = {}
    for path in [*MODULES.values(), *(ROOT / "benchmarks").glob("*.py")]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(node)

    def described(node: ast.ClassDef) -> set[str]:
        """The methods that the class describes, or one that it extends."""
        bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
        extended = [other for base in bases - {node.name} for other in classes.get(base, ())]
        own = {part.name for part in node.body if isinstance(part, functions) and ast.get_docstring(part)}
        return own.union(*map(described, extended))

    bare = {
        f"{name}.{part.name}"
        for name, nodes in classes.items()
        for node in nodes
        for part in node.body
        if isinstance(part, functions) and not name.startswith("_") and not part.name.startswith("_")
        if part.name not in described(node)
    }
    assert not bare


def test_public_names_exist():
    import localagent
    from localagent import parsers

    for package in (localagent, parsers):
        for name in package.__all__:
            assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        localagent.nothing  # noqa: B018
