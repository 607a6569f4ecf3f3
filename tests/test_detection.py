"""The dialect of a model is found by its template and its vocabulary, that of an output by its markers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from localagent.detection import (
    declared_in,
    detect_dialect,
    find_declared,
    find_dialect,
    guess_dialect,
    guessing,
    nearest_dialect,
    opens_reasoning,
    require_markers,
)
from localagent.errors import DialectMismatch, UnknownDialect
from localagent.prompt.probe import ARGUMENTS, NAME, probe_calls
from parsers import DIALECTS, CallPart, StreamParser, collect, dialect_named

WRITING = [dialect for dialect in DIALECTS.values() if dialect.renderers]
CALLING = [dialect.name for dialect in WRITING]

# -- by what a chat template writes -------------------------------------------------------------------

USER = "<|user|>{{ m.content }}"
ALIKE = {
    "smollm3": "hermes",
    "ernie": "hermes",
}
"""Dialects whose calls are written as another writes them: the more common one is found."""


def template(calls: str, reasoning: str = "", end: str = "", prompt: str = "<|assistant|>") -> str:
    """A chat template whose turns of the model hold `calls`, a loop over `m.tool_calls`."""
    return (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}{% else %}<|assistant|>"
        + ("{% if m.reasoning_content %}" + reasoning + "{% endif %}" if reasoning else "")
        + "{{ m.content }}"
        + calls
        + end
        + "{% endif %}{% endfor %}{% if add_generation_prompt %}"
        + prompt
        + "{% endif %}"
    )


def each(call: str) -> str:
    """`call` for every call, in which `f` is the function."""
    return "{% for c in m.tool_calls %}{% set f = c.function %}" + call + "{% endfor %}"


def pairs(pair: str, of: str = "f.arguments") -> str:
    """`pair` for every argument, in which `k` is the key and `v` the value."""
    return "{% for k, v in " + of + ".items() %}" + pair + "{% endfor %}"


JSON_CALL = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
QWEN_THOUGHT = "<think>\n{{ m.reasoning_content }}\n</think>\n\n"
THOUGHT = "<think>{{ m.reasoning_content }}</think>"
TEMPLATES = {
    "hermes": template(each("<tool_call>\n" + JSON_CALL + "\n</tool_call>"), QWEN_THOUGHT, "<|im_end|>\n"),
    "qwen3-coder": template(
        each(
            "\n<tool_call>\n<function={{ f.name }}>\n"
            + pairs("<parameter={{ k }}>\n{{ v }}\n</parameter>\n")
            + "</function>\n</tool_call>"
        ),
        QWEN_THOUGHT,
        "<|im_end|>\n",
        "<|assistant|><think>\n",
    ),
    "seed-oss": template(
        each(
            "<seed:tool_call>\n<function={{ f.name }}>\n"
            + pairs("<parameter={{ k }}>{{ v }}</parameter>\n")
            + "</function>\n</seed:tool_call>"
        ),
        "<seed:think>{{ m.reasoning_content }}</seed:think>",
    ),
    "glm45": template(
        each(
            "\n<tool_call>{{ f.name }}\n"
            + pairs("<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n")
            + "</tool_call>"
        ),
        "\n" + THOUGHT,
    ),
    "glm47": template(
        each(
            "<tool_call>{{ f.name }}"
            + pairs("<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>")
            + "</tool_call>"
        ),
        THOUGHT,
        prompt="<|assistant|><think>",
    ),
    "minimax-m2": template(
        "\n<minimax:tool_call>\n"
        + each(
            '<invoke name="{{ f.name }}">\n'
            + pairs('<parameter name="{{ k }}">{{ v }}</parameter>\n')
            + "</invoke>\n"
        )
        + "</minimax:tool_call>",
    ),
    "deepseek-v3": template(
        "<｜tool▁calls▁begin｜>"
        + each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
            "{{ '' + f.arguments }}\n```<｜tool▁call▁end｜>"  # only arguments that are text
        )
        + "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v31": template(
        "<｜tool▁calls▁begin｜>"
        + each("<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>{{ f.arguments | tojson }}<｜tool▁call▁end｜>")
        + "<｜tool▁calls▁end｜>",
        prompt="<|assistant|></think>",
    ),
    "deepseek-v32": template(
        "\n\n<｜DSML｜function_calls>\n"
        + each(
            '<｜DSML｜invoke name="{{ f.name }}">\n'
            + pairs(
                '<｜DSML｜parameter name="{{ k }}" string="{{ \'true\' if v is string else \'false\' }}">'
                "{{ v }}</｜DSML｜parameter>\n"
            )
            + "</｜DSML｜invoke>\n"
        )
        + "</｜DSML｜function_calls>",
    ),
    "kimi-k2": template(
        "<|tool_calls_section_begin|>"
        + each(
            "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>"
        )
        + "<|tool_calls_section_end|>",
    ),
    "gemma4": template(
        each(
            "<|tool_call>call:{{ f.name + '{' }}"
            + pairs(
                "{{ k }}:{% if v is string %}<|\"|>{{ v }}<|\"|>{% else %}{{ v }}{% endif %}"
                "{{ ',' if not loop.last }}"
            )
            + "}<tool_call|>"
        ),
        "<|channel>thought\n{{ m.reasoning_content }}\n<channel|>",
    ),
    "harmony": template(
        each(
            "<|start|>assistant to=functions.{{ f.name }}<|channel|>commentary json<|message|>"
            "{{ f.arguments | tojson }}<|call|>"
        ),
        "<|start|>assistant<|channel|>analysis<|message|>{{ m.reasoning_content }}<|end|>",
    ).replace("<|assistant|>", ""),
    "mistral": template(
        each(
            "{% if c.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
            "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"
        ),
        end="</s>",
    ),
    "llama3-json": template(
        "{% if m.tool_calls %}"
        + each('{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}')
        + "{% endif %}",
        end="<|eot_id|>",
        prompt="<|assistant|>\n\n",
    ).replace("<|assistant|>", "<|assistant|>\n\n", 1),
    "nemotron-nano-v2": template(
        "\n\n<TOOLCALL>[{% for c in m.tool_calls %}{% set f = c.function %}"
        + JSON_CALL
        + "{{ ', ' if not loop.last }}{% endfor %}]</TOOLCALL>",
        end="\n<SPECIAL_12>\n",
        prompt="<|assistant|><think>\n\n",
    ),
    "gigachat3": template(each("<|function_call|>" + JSON_CALL), end="<|message_sep|>\n\n"),
    "functionary": template(
        each("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"), end="<|eom_id|>"
    ),
    "functionary32": template(
        each(">>>{{ f.name }}\n{{ f.arguments | tojson }}"), end="<|eot_id|>", prompt="<|assistant|>>>>"
    ),
    "longcat": template(
        each(
            "<longcat_tool_call>{{ f.name }}\n"
            + pairs(
                "<longcat_arg_key>{{ k }}</longcat_arg_key>\n<longcat_arg_value>{{ v }}</longcat_arg_value>\n"
            )
            + "</longcat_tool_call>\n"
        ),
        end="</longcat_s>",
        prompt="<|assistant|><longcat_think>\n",
    ),
    "hy3": template(
        "<tool_calls:opensource>\n"
        + each(
            "<tool_call:opensource>{{ f.name }}<tool_sep:opensource>\n"
            + pairs(
                "<arg_key:opensource>{{ k }}</arg_key:opensource>\n"
                "<arg_value:opensource>{{ v }}</arg_value:opensource>\n"
            )
            + "</tool_call:opensource>\n"
        )
        + "</tool_calls:opensource>",
        "<think:opensource>{{ m.reasoning_content }}</think:opensource>",
    ),
    "hy4": template(
        "<tool_calls>"
        + each(
            "<tool_call>{{ f.name }}"
            + pairs("<arg_key>{{ k }}</arg_key><arg_value>{{ v }}</arg_value>")
            + "</tool_call>"
        )
        + "</tool_calls>",
        THOUGHT,
    ),
    "k2-horizon": template(
        "<ifm|tool_calls>\n"
        + each(
            "<ifm|tool_call>{{ f.name }}\n"
            + pairs("<ifm|arg_key>{{ k }}</ifm|arg_key>\n<ifm|arg_value>{{ v }}</ifm|arg_value>\n")
            + "</ifm|tool_call>\n"
        )
        + "</ifm|tool_calls>",
        "<ifm|think>\n{{ m.reasoning_content }}</ifm|think>",
        "<|ifm|im_end|>",
        "<|assistant|><ifm|think_fast>\n",
    ),
    "solar-open": template(
        "<|tool_calls|>"
        + each(
            "<|tool_call:begin|>{{ c.id }}<|tool_call:name|>{{ f.name }}<|tool_call:args|>"
            "{{ f.arguments | tojson }}<|tool_call:end|>"
        )
        + "<|calls|>",
        "<|think|>{{ m.reasoning_content }}<|end|><|begin|>assistant",
    ),
    "solar-open2": template(
        each(
            "<|tool_call:start|>{{ f.name }}\n"
            + pairs("<|tool_arg:start|>{{ k }}<|tool_arg:value|>{{ v }}<|tool_arg:end|>\n")
            + "<|tool_call:end|>"
        ),
        "<|think:start|>{{ m.reasoning_content }}<|think:end|>",
        "<|im:end|>",
    ),
    "minimax-m3": template(
        "]<]minimax[>[<tool_call>\n"
        + each(
            ']<]minimax[>[<invoke name="{{ f.name }}">'
            + pairs("]<]minimax[>[<{{ k }}>{{ v }}]<]minimax[>[</{{ k }}>")
            + "]<]minimax[>[</invoke>\n"
        )
        + "]<]minimax[>[</tool_call>",
        "<mm:think>{{ m.reasoning_content }}</mm:think>",
        "[e~[",
    ),
    "inkling": template(
        each(
            "<|message_model|>{{ f.name }}<|content_invoke_tool_json|>"
            '{"args": {{ f.arguments | tojson }}, "name": "{{ f.name }}"}<|end_message|>'
        ),
        "<|message_model|><|content_thinking|>{{ m.reasoning_content }}<|end_message|>",
        "<|content_model_end_sampling|>",
    ),
    "muse": template(
        each(
            "<|start|>assistant to={{ f.name }}<|message|><atem:function_calls>\n"
            '<atem:invoke name="{{ f.name }}">\n'
            + pairs('<atem:parameter name="{{ k }}">{{ v }}</atem:parameter>\n')
            + "</atem:invoke>\n</atem:function_calls><|eot|>"
        ),
        "<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>",
        prompt="<|start|>assistant",
    ).replace("<|assistant|>", ""),
    "command-r7b": template(
        "<|START_ACTION|>[\n"
        + each(
            '    {"tool_call_id": "0", "tool_name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}\n'
        )
        + "]<|END_ACTION|>",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_asked_to_write_a_call(name):
    assert detect_dialect(frozenset(), "", TEMPLATES[name]).name == name


@pytest.mark.parametrize("name", TEMPLATES)
def test_shared_markers_in_the_vocabulary_do_not_outweigh_the_template(name):
    vocabulary = {"<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "[TOOL_CALLS]"}
    assert detect_dialect(vocabulary, "", TEMPLATES[name]).name == name


@pytest.mark.parametrize("dialect", WRITING, ids=CALLING)
def test_what_a_dialect_writes_is_told_to_be_its_own(dialect):
    for notation in dialect.renderers:
        written = dialect.render([(NAME, ARGUMENTS)], notation)
        source = template("{% raw %}" + written + "{% endraw %}")
        found = detect_dialect(frozenset(), "", source)
        assert found.name in (dialect.name, ALIKE.get(dialect.name), "json"), (found.name, written)
        if found.name == dialect.name:
            assert found.render([(NAME, ARGUMENTS)]) == written


def test_reasoning_in_front_of_the_call_changes_nothing():
    """Qwen3's prompt opens the reasoning for a turn whose template closes it at once."""
    source = template(each("<tool_call>\n" + JSON_CALL + "\n</tool_call>"), prompt="<|assistant|><think>\n")
    source = source.replace("{{ m.content }}{% for", "<think>\n\n</think>\n\n{% for")
    (written,) = {probed.prompt for probed in probe_calls(source)}
    assert written.endswith("<think>\n")
    assert detect_dialect(frozenset(), "", source).name == "hermes"


def test_the_notation_is_that_of_the_template():
    calls = '[{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}]'
    found = detect_dialect(frozenset(), "", template("[TOOL_CALLS]" + each(calls), end="</s>"))
    assert found.name == "mistral"
    assert found.render([("f", {})]).startswith("[TOOL_CALLS][{")
    assert DIALECTS["mistral"].render([("f", {})]) == "[TOOL_CALLS]f[ARGS]{}"


def test_a_format_that_nobody_reads_is_plain_whatever_the_vocabulary_holds():
    source = template(each("<<<{{ f.name }} {{ f.arguments | tojson }}>>>"))
    assert list(probe_calls(source))
    assert detect_dialect({"<tool_call>", "</tool_call>"}, "", source).name == "plain"


@pytest.mark.parametrize(
    "around",
    [
        "<TOOLS>[{}]</TOOLS>",
        "<tool_calls>\n{}\n",
        "<|function_calls|>{}",
        "<calls>[{}]",
        "[{}]</calls>",
        "Calls: {}<|im_end|>",
        "{} done",
    ],
)
def test_markers_that_nobody_knows_are_no_content(around):
    for call in (
        JSON_CALL,
        JSON_CALL.replace("arguments", "parameters", 1),
        "{{ f.name }}(city='Paris', days=3)",
    ):
        source = template(
            each("{% raw %}" + around.replace("{}", "{% endraw %}" + call + "{% raw %}") + "{% endraw %}")
        )
        assert list(probe_calls(source))
        found = detect_dialect(frozenset(), "", source).name
        assert found in ("plain", "hunyuan") if "<tool_calls>" in around else found == "plain"


def test_a_call_without_markers_may_end_the_turn():
    for end in ("", "\n", "<|im_end|>\n", "<|whatever|>", "</s>", "<end_of_turn>\n"):
        assert detect_dialect(frozenset(), "", template(each(JSON_CALL), "", end)).name in (
            "json",
            "llama3-json",
        )


def test_the_architecture_says_less_than_the_template():
    vocabulary = {"<|tool_call_start|>", "<|tool_call_end|>"}
    assert detect_dialect(vocabulary, "lfm2", "nothing").name == "lfm2"
    assert detect_dialect(vocabulary, "lfm2", TEMPLATES["hermes"]).name == "hermes"
    assert detect_dialect(vocabulary, "lfm2", template(each("<<{{ f.name }}>>"))).name == "plain"


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{{ 1 / 0 }}", "nothing", "{{ raise_exception('no') }}"],
)
def test_a_template_that_writes_no_calls_leaves_it_to_the_vocabulary(source):
    assert detect_dialect(frozenset(), "", source).name == "plain"
    assert detect_dialect({"<|tool_call_start|>", "<|tool_call_end|>"}, "", source).name == "lfm2"


def test_what_a_template_mentions_counts_where_it_writes_no_calls():
    told = "{{ 'Answer with <|tool_call|> and a list.' }}"
    assert detect_dialect({"<|tool_call|>"}, "", told).name == "granite3"
    assert detect_dialect({"<|tool_call|>", "<|/tool_call|>"}, "", "x").name == "phi4-mini"
    told = "{{ 'Answer with <｜DSML｜tool_calls> and </｜DSML｜tool_calls>.' }}"
    assert detect_dialect({"｜DSML｜"}, "", told).name == "deepseek-v4"
    assert detect_dialect({"｜DSML｜"}, "", None).name == "deepseek-v32"


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("muse", "<|start|> <|message|> <|eom|> <|eot|> <|end_of_text|>"),
        ("harmony", "<|start|> <|message|> <|channel|> <|constrain|> <|end|> <|return|> <|call|>"),
        ("inkling", "<|message_model|> <|content_invoke_tool_json|> <|end_message|>"),
        ("minimax-m3", "]<]minimax[>[ [e~["),
        ("hy3", "<tool_calls:opensource> </tool_calls:opensource> <tool_call:opensource> <think:opensource>"),
        ("longcat", "<longcat_tool_call> </longcat_tool_call> </longcat_s>"),
        ("k2-horizon", "<ifm|tool_calls> </ifm|tool_calls> <ifm|tool_call> <ifm|think>"),
        ("solar-open", "<|tool_calls|> <|tool_call:begin|> <|tool_call:end|> <|calls|>"),
        ("solar-open2", "<|tool_call:start|> <|tool_call:end|> <|tool_arg:start|>"),
        ("gigachat3", "<|function_call|> <|message_sep|> <|role_sep|>"),
    ],
)
def test_tokens_that_one_format_has_tell_it_without_a_template(name, vocabulary):
    assert detect_dialect(frozenset(vocabulary.split()), "", "x").name == name


def test_hunyuan_has_the_label_of_its_vocabulary():
    relabelled = TEMPLATES["hy3"].replace(":opensource", ":6124c78e")
    assert detect_dialect(frozenset(), "", relabelled).name == "plain"
    vocabulary = {"<tool_calls:6124c78e>", "</tool_calls:6124c78e>"}
    found = detect_dialect(vocabulary, "", relabelled)
    assert found.name == "hy3"
    assert found.render([("f", {})]).startswith("<tool_calls:6124c78e>\n<tool_call:6124c78e>f<tool_sep")
    assert detect_dialect(vocabulary, "", None).calls == found.calls


def test_a_prompt_may_open_the_reasoning_of_any_effort():
    k2 = DIALECTS["k2-horizon"]
    assert opens_reasoning(k2, "<|ifm|im_start|>assistant\n<ifm|think_faster>\n")
    assert not opens_reasoning(k2, "<ifm|think_fast></ifm|think_fast>")


# -- by what a model declares --------------------------------------------------------------------------

CALL = "<run {{ f.name }}>{{ f.arguments | tojson }}</run>"
FIELDS = {
    "content": {},
    "tool_calls": {
        "open_pattern": r"<run (?P<name>\w+)>",
        "close": "</run>",
        "content": "json",
        "repeats": True,
        "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
    },
}


@pytest.fixture
def declared(tmp_path):
    """The dialect that the model in that folder declares."""
    table = {"response_template": {"start_anchor": "<|assistant|>", "fields": FIELDS}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(table))
    return declared_in(tmp_path)


def test_a_known_dialect_comes_before_the_declared_one(declared):
    """Whether it is known by the template, by the architecture, or by vocabulary and template."""
    assert detect_dialect(frozenset(), "", TEMPLATES["hermes"], declared).name == "hermes"
    assert detect_dialect(frozenset(), "lfm2", "nothing", declared).name == "lfm2"
    told = "{# <|tool_call_start|> and <|tool_call_end|> #}"
    assert (
        detect_dialect({"<|tool_call_start|>", "<|tool_call_end|>"}, "llama", told, declared).name == "lfm2"
    )


def test_the_declared_dialect_comes_before_guesses(declared):
    """Markers that are only in the vocabulary, or only in the template, prove nothing."""
    assert declared.name == "declared"
    assert detect_dialect(frozenset(), "", template(each(CALL)), declared) is declared
    assert detect_dialect({"<tool_call>", "</tool_call>"}, "", "nothing", declared) is declared
    assert detect_dialect(frozenset(), "", "{# <tool_call> and </tool_call> #}", declared) is declared
    assert detect_dialect(frozenset(), "", None, declared) is declared


def test_a_declaration_that_does_not_read_what_the_template_writes_is_not_used(declared):
    assert detect_dialect(frozenset(), "", template(each("<<{{ f.name }}>>")), declared).name == "plain"


def test_a_model_without_a_declaration_that_can_be_read_has_none(tmp_path):
    """GGUF files have no such configuration; a broken one is only an error where it is asked for."""
    assert declared_in(tmp_path) is None
    assert declared_in(tmp_path / "model.gguf") is None
    (tmp_path / "tokenizer_config.json").write_text('{"response_template": {}}')
    assert declared_in(tmp_path) is None
    with pytest.raises(
        UnknownDialect, match=r"tokenizer_config\.json: response_template\.start_anchor: missing"
    ):
        find_declared(tmp_path)
    for path in ("a\0b", "~nobody/x", "x" * 5000):
        with pytest.raises(UnknownDialect):
            find_declared(path)


@pytest.mark.engine
def test_a_loaded_model_has_the_dialect_that_it_declares(tmp_path):
    """One whose architecture is known to write LFM2's format keeps that."""
    pytest.importorskip("mlx")
    from localagent.model import load
    from tests.hosts.mlx.folders import write_folder, write_tokenizer

    for kind, name in (("llama", "declared"), ("lfm2", "lfm2")):
        folder = write_folder(tmp_path / kind, kind)
        shown = "{% for m in messages %}{{ m.content }}{% endfor %}"
        table = {"start_anchor": "<|assistant|>", "fields": FIELDS}
        write_tokenizer(folder, chat_template=shown, response_template=table)
        with load(folder, backend="mlx", context=64) as model:
            assert model.dialect.name == name


# -- by name ------------------------------------------------------------------------------------------


def test_an_unknown_name_is_answered_with_all_there_are():
    with pytest.raises(UnknownDialect) as caught:
        find_dialect("klingon")
    names = ", ".join(sorted(DIALECTS))
    assert str(caught.value) == f"no dialect 'klingon': choose {names}, or a TOML file of your own"


def test_capitals_do_not_count_and_an_alias_is_as_good(monkeypatch):
    assert find_dialect("Hermes") is DIALECTS["hermes"]
    monkeypatch.setitem(DIALECTS, "hermes", replace(DIALECTS["hermes"], aliases=("xLAM",)))
    assert find_dialect("xlam") is dialect_named("XLAM") is DIALECTS["hermes"]


def test_a_dialect_may_be_a_path(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nbased_on = "hermes"')
    assert find_dialect(file).name == find_dialect(str(file)).name == "mine"
    other = tmp_path / "mine.txt"
    other.write_text("")
    for name in (other, str(other)):
        with pytest.raises(UnknownDialect, match=r"mine\.txt is not a \.toml file"):
            find_dialect(name)
    with pytest.raises(UnknownDialect) as caught:
        find_dialect(tmp_path / "nothing")
    assert str(caught.value) == f"no such file: {tmp_path / 'nothing'}"
    with pytest.raises(UnknownDialect, match=r"no dialect '.*nothing': choose"):
        find_dialect(str(tmp_path / "nothing"))
    with pytest.raises(UnknownDialect, match=r"^no dialect '': choose"):
        find_dialect("")
    for name in ("a\0b", "~nobody/x", "x" * 5000, "a\0b.toml"):
        with pytest.raises(UnknownDialect):
            find_dialect(name)


def test_a_broken_dialect_of_the_catalogue_is_found_before_weights_are_fetched(monkeypatch):
    from localagent import model
    from localagent.catalog import load_catalog
    from localagent.store import WeightStore

    broken = load_catalog().default.model_copy(update={"dialect": "klingon"})
    monkeypatch.setattr(model, "locate", lambda *_, **__: (broken, "llamacpp"))
    monkeypatch.setattr(WeightStore, "pull", lambda *_, **__: pytest.fail("fetched"))
    with pytest.raises(UnknownDialect, match="klingon"):
        model.load()


def test_control_tokens_are_required_and_other_markers_are_not():
    nothing: frozenset[str] = frozenset()
    for name in ("lfm2", "mistral", "deepseek-v3", "kimi-k2", "gemma4", "command-r7b"):
        with pytest.raises(DialectMismatch, match="lacks in its vocabulary"):
            require_markers(DIALECTS[name], nothing, "m")
    for name in (
        "plain",
        "hermes",
        "qwen3-coder",
        "glm45",
        "minicpm5",
        "llama3-json",
        "json",
        "seed-oss",
        "llama-pythonic",
        "deepseek-v32",
    ):
        require_markers(DIALECTS[name], nothing, "m")
    require_markers(DIALECTS["deepseek-v3"], nothing, "a distilled one", TEMPLATES["deepseek-v3"])


def test_what_a_vocabulary_lacks_is_told():
    start, end = "<|tool_call_start|>", "<|tool_call_end|>"
    for tokens, template, lacking in (
        ((), None, f"{start} and {end}"),
        ((start,), "", end),
        ((), f"It says {end}.", start),
    ):
        with pytest.raises(DialectMismatch) as caught:
            require_markers(DIALECTS["lfm2"], frozenset(tokens), "the model", template)
        assert str(caught.value) == (
            f"the dialect 'lfm2' needs {lacking}, which the model lacks in its vocabulary: let the dialect be "
            "detected, or choose another model"
        )
    require_markers(DIALECTS["lfm2"], frozenset((start, end)), "the model")
    require_markers(DIALECTS["lfm2"], frozenset((start,)), "the model", end)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_prompt_that_ends_with_the_opening_marker_opens_the_reasoning(dialect):
    span = dialect.reasoning
    if span is None:
        assert not opens_reasoning(dialect, "<think>")
        return
    for space in ("", "\n", "\n\n", " "):
        assert opens_reasoning(dialect, f"<|assistant|>{span.open}{space}")
    assert not opens_reasoning(dialect, f"{span.open}\n\n{span.close}\n\n")
    assert not opens_reasoning(dialect, "")
    StreamParser(dialect, inside="reasoning")


# -- by an output -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", WRITING, ids=CALLING)
def test_an_output_tells_its_dialect(dialect):
    calls = [("look_up", {"city": "Paris", "days": 3}), ("g", {"a": [1, {"b": None}]})]
    written = dialect.render(calls)
    parser = StreamParser(guess_dialect(written))
    parts = collect([*parser.feed(written), *parser.close()])
    assert [(part.name, part.arguments) for part in parts if isinstance(part, CallPart)] == calls


@pytest.mark.parametrize(
    "raw",
    [
        '<think>draft <tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call></think>ok',
        '<think><tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call></think>ok',
        "<|channel|>analysis<|message|>maybe [TOOL_CALLS]f[ARGS]{}<|end|>"
        "<|start|>assistant<|channel|>final<|message|>No.<|return|>",
        '<|tool_call_start|>[write(path=\'a\', text=\'<tool_call>{"name": "rm", "arguments": {}}</tool_call> and so',
        '{"name": "write", "parameters": {"text": "[TOOL_CALLS]rm[ARGS]{} x',
        '[THINK]maybe {"name": "f", "parameters": {}}[/THINK]',
        '<tool_call>\n{"arguments": {"text": "<|tool_call_start|>[rm()]<|tool_call_end|>"}, "name": "write"}\n</tool_call>',
    ],
)
def test_a_call_that_was_never_made_tells_nothing(raw):
    with pytest.raises(UnknownDialect, match="no dialect reads calls"):
        guess_dialect(raw)


def test_reasoning_opened_by_the_prompt_is_closed_as_each_dialect_does():
    raw = "hm</seed:think>Now: <seed:tool_call>\n<function=g>\n</function>\n</seed:tool_call>"
    assert guess_dialect(raw, inside="reasoning").name == "seed-oss"
    raw = '<tool_call>{"name": "f", "arguments": {}}</tool_call></think>ok'
    with pytest.raises(UnknownDialect):
        guess_dialect(f"hm {raw}", inside="reasoning")


def test_an_output_without_calls_tells_nothing():
    for raw in ("", "Hello.", '<tool_call>\n{"name": "f", "argu'):
        with pytest.raises(UnknownDialect, match="no dialect reads calls"):
            guess_dialect(raw)


def test_a_call_begins_at_the_marker_of_its_block():
    """Whatever began before that, and reaches into it, may hold it."""
    text = "Hi. <|tool_call_start|>[a(), b()]<|tool_call_end|> So: <|tool_call_start|>[c()]<|tool_call_end|>"
    found = list(guessing._calls(guessing.explain(text, DIALECTS["lfm2"], None, None)))
    first, second = text.index("<|tool_call_start|>"), text.rindex("<|tool_call_start|>")
    assert [call.begin for call in found] == [first, first, second]
    assert [text[call.start : call.end].rstrip(",] ") for call in found] == ["a()", "b()", "c()"]


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (HERMES, "hermes"),
        (HERMES.replace("\n", "").replace(" ", ""), "hermes"),
        (f"x {HERMES}", "hermes"),
        ("[f(a=1)]", "llama-pythonic"),
        ("<|tool_call_start|>[f(a=1)]<|tool_call_end|>", "lfm2"),
        ("<|tool_call_start|>[f(a=1)]<|tool_call_end|> and <tool_call>", "lfm2"),
        ('{"name": "f", "parameters": {"a": 1}}', "llama3-json"),
        ("<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "glm45"),
        ("<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", "glm47"),
        ('[TOOL_CALLS]f[ARGS]{"a": 1}', "mistral"),
        ('[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', "mistral"),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            "qwen3-coder",
        ),
    ],
)
def test_the_dialect_that_would_have_written_it_is_guessed(raw, name):
    assert guess_dialect(raw).name == name


@pytest.mark.parametrize(
    "raw",
    [
        "Sure. [f(a=1)]",
        'Sure: {"name": "f", "arguments": {"a": 1}} done',
        '{"name": "f", "arguments": {"a": 1}} <|tool_call_start|>',
    ],
)
def test_calls_without_markers_beside_something_else_tell_nothing(raw):
    with pytest.raises(UnknownDialect) as caught:
        guess_dialect(raw)
    assert str(caught.value) == (
        "no dialect reads calls from this output without anything malformed: name one"
    )


def test_an_output_that_two_dialects_read_equally_well_tells_nothing():
    raw = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
    raw += '<|tool_call_start|>[g(a="xxxxxxxxxx")]<|tool_call_end|>'
    with pytest.raises(UnknownDialect) as caught:
        guess_dialect(raw)
    assert str(caught.value) == (
        "several dialects read this output, each in its own way: lfm2, hermes, smollm3, ernie: name one"
    )
    assert guess_dialect(raw.replace("xxx", "x")).name == "hermes", "of which less is left over"
    assert guess_dialect(raw.replace("x", "xx")).name == "lfm2"


@pytest.mark.parametrize(
    ("raw", "closeness"),
    [
        (HERMES, 3),
        (f"So: {HERMES} then.", 3),
        (HERMES.replace("\n", ""), 2),
        ('<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>', 1),
    ],
)
def test_how_closely_a_dialect_would_have_written_it(raw, closeness):
    read = guessing.explain(raw, DIALECTS["hermes"])
    assert (read.closeness, read.notation) == ((closeness, "json"), "json")


@pytest.mark.parametrize("dialect", WRITING, ids=CALLING)
def test_every_notation_of_a_dialect_is_told(dialect):
    for notation in dialect.renderers:
        read = guessing.explain(
            dialect.render([("look_up", {"city": "Paris", "days": 3})], notation), dialect
        )
        assert read.closeness == (3, notation)
        assert read.merit[:3] == (
            True,
            3,
            0 if read.calls else -len(read.text),
        )  # `json` reads none without tools


def test_what_a_dialect_reads_is_what_a_user_would_see():
    raw = f"Hi <think>hm</think>So {HERMES} and {HERMES.replace('f', 'g')}."
    read = guessing.explain(raw, DIALECTS["hermes"])
    assert read.calls == [("f", {"a": 1}), ("g", {"a": 1})]
    assert (read.reasoning, read.content, read.around) == ("hm", "Hi So  and .", ("Hi So ", " and ."))
    assert read.meaning == (repr(read.calls), "Hi So  and .", "hm")
    assert (read.malformed, read.repaired, read.marked, read.markers) == (False, False, True, 4)
    assert read.merit == (True, 1, -12, 4)
    plain = guessing.explain(raw, DIALECTS["plain"])
    assert (plain.calls, plain.around) == ([], ("", raw.replace("<think>hm</think>", "")))
    assert (plain.closeness, plain.notation) == ((0, ""), "")
    assert (plain.marked, plain.markers) == (False, 2)
    assert guessing.explain('<tool_call>{"name": ', DIALECTS["hermes"]).malformed


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("", "plain"),
        ("Hello.", "plain"),
        ("<think>hm", "plain"),
        ("<|tool_call_start|>[f(a=1", "lfm2"),
        ('<tool_call>\n{"name": "f", "argu', "hermes"),
        ('[TOOL_CALLS]f[ARGS]{"a', "mistral"),
        ('<|tool_call_start|>[f(a=1)]<|tool_call_end|><tool_call>{"name": ', "lfm2"),
        (f'{HERMES}<|tool_call_start|>[f(a="x', "hermes"),
        (
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
            "qwen3-coder",
        ),
    ],
)
def test_the_dialect_that_comes_nearest_to_an_output_with_faults(raw, name):
    assert nearest_dialect(raw).name == name
