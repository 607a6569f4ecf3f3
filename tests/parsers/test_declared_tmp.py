import sys; sys.path.insert(0,"/tmp")
import pytest
from hypothesis import given, settings, strategies as st
from dataclasses import replace
from decls import D
from parsers import DIALECTS
from parsers.declared import declared_dialect
from tests.parsers import test_laws
NAMES=[]
@pytest.fixture(scope="module",autouse=True)
def reg():
    for n,d in D.items():
        DIALECTS["d-"+n]=replace(declared_dialect({"response_template":d,"eos_token":"<eos>"}),name="d-"+n)
    yield
    for n in D: del DIALECTS["d-"+n]
NAMES=["d-"+n for n in D]
any_output=test_laws.test_any_output_keeps_the_laws.hypothesis.inner_test
flagged=test_laws.test_chunking_of_flagged_pieces_changes_nothing.hypothesis.inner_test
calls=test_laws.test_calls_keep_the_laws.hypothesis.inner_test
streams=test_laws.test_string_arguments_stream_as_they_arrive.hypothesis.inner_test
@test_laws.law("chunks",dialects=NAMES)
@given(data=st.data())
def test_any(dialect,data): any_output(dialect,data)
@test_laws.law("chunks",dialects=NAMES)
@given(data=st.data())
def test_flagged(dialect,data): flagged(dialect,data)
@test_laws.law("chunks",dialects=[n for n in NAMES if n!="d-code"])
@given(data=st.data())
def test_calls(dialect,data): calls(dialect,data)
@test_laws.law("prompt",dialects=[n for n in NAMES if n!="d-code"])
@given(words=st.text(st.characters(categories=["L", "Nd"]), min_size=1, max_size=20))
def test_streams(dialect,words): streams(dialect,words)
@pytest.mark.parametrize("dialect",[n for n in NAMES if n!="d-code"])
def test_ordinary(dialect): test_laws.test_every_dialect_with_calls_writes_ordinary_ones(dialect)
