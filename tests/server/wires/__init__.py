import pytest

pytest.register_assert_rewrite("tests.server.wires.rules", "tests.server.wires.turns")
