from sebulba.tools.report.html import Markup, code, element, image, join, pairs, table

EVIL = "<script>alert('\"')</script>&"


def test_text_is_escaped_everywhere():
    made = [
        element("p", EVIL, title=EVIL),
        table([EVIL], [[EVIL]]),
        pairs({EVIL: EVIL}),
        code(EVIL),
        join([EVIL]),
        image(EVIL, description=EVIL),
    ]
    for each in made:
        assert isinstance(each, Markup)
        assert "<script" not in each
        assert "&amp;" in each
        assert "\"'" not in each


def test_elements_nest():
    nested = element("p", "a < b ", element("b", "c"), None, 3, class_="x")
    assert nested == '<p class="x">a &lt; b <b>c</b>3</p>'
