"""The examples of docs/inference.md give the documented output on the shipped model."""

import doctest
import re
from pathlib import Path

import pytest

from electra_albert.inference.model import load_model

ROOT = Path(__file__).parents[2]
NUMBER = re.compile(r"-?\d+\.\d+")


class RoundedNumbers(doctest.OutputChecker):
    """Equal but for spaces and line breaks, numbers to within what rounding to two decimals changes."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        texts = ["".join(NUMBER.sub("#", output).split()) for output in (want, got)]
        numbers = [[float(number) for number in NUMBER.findall(output)] for output in (want, got)]
        return texts[0] == texts[1] and numbers[0] == pytest.approx(numbers[1], abs=0.0051)


def test_the_documented_examples_give_the_documented_output() -> None:
    text = (ROOT / "docs" / "inference.md").read_text(encoding="utf-8").partition("\n## Fine-tuned models")[0]
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if ">>>" in block]
    names = {"model": load_model(ROOT / "data" / "models" / "english-h256-l4", device="cpu")}
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), names, "inference.md", None, None)
    report: list[str] = []
    failed, run = doctest.DocTestRunner(RoundedNumbers()).run(test, out=report.append)
    assert (failed, run) == (0, 12), "".join(report)
