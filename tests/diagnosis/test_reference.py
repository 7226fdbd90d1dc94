"""The reference of findings is whole: every rule, in the order of causes, with what a reader needs."""

from dataclasses import fields

from gradlab.base.docstrings import documented
from gradlab.diagnosis.options import CODES, rule_classes
from gradlab.diagnosis.reference import reference


def test_it_has_a_section_for_every_rule_in_the_order_of_causes() -> None:
    lines = reference().splitlines()
    sections = [line.removeprefix("## ").strip("`") for line in lines if line.startswith("## `")]
    assert sections == list(CODES)
    assert len({cls.position for cls in rule_classes()}) == len(CODES), "two rules have the same position"


def test_every_rule_and_every_threshold_is_documented() -> None:
    text = reference()
    for cls in rule_classes():
        assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), cls
        assert cls.fixes, cls
        assert documented(cls).keys() >= {f.name for f in fields(cls)}
        for f in fields(cls):
            assert f"| `diagnosis.{cls.code}.{f.name}` | {f.default:g} | {documented(cls)[f.name]} |" in text
