"""What somebody else wrote is text in Markdown and on a terminal."""

from __future__ import annotations

import pytest
from markupsafe import Markup

from lab.console import printable, tell
from lab.report.markdown import code, escaped


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("norm_softmax, softmax.tau=0.333 (n = 5; < 0.001)", "norm_softmax, softmax.tau=0.333 (n = 5; < 0.001)"),
        ("a|b\nc", r"a\|b\\nc"),
        ("<b>&lt;", "&lt;b>&amp;lt;"),
        ("![a](b) `c` *d* _e_ ~f~ $g$", r"!\[a\](b) \`c\` \*d\* \_e\_ \~f\~ \$g\$"),
        ("https://a www.b.c", "https&#58;//a www&#46;b.c"),
        (Markup("**a**"), "**a**"),
        (5, "5"),
    ],
)
def test_text_makes_nothing_of_the_page(text: object, shown: str) -> None:
    assert escaped(text) == shown


def test_code_ends_where_it_should() -> None:
    assert code("a_b") == "`a_b`" and code("a``b\n") == r"``` a``b\n ```"


def test_a_terminal_is_not_steered(capsys: pytest.CaptureFixture[str]) -> None:
    tell("a\x1b]0;b\x07\nc\u202e")
    assert capsys.readouterr().err == "a\\x1b]0;b\\x07\nc\\u202e\n"
    assert printable("ä 你 ✓") == "ä 你 ✓"
