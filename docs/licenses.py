"""Write docs/licenses.md, the licences of all packages in requirements.lock for this platform:
`make requirements`.

pip resolves the pins without installing anything and reports each package's metadata.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
PIP = (
    Path(sys.executable).with_name("uv"),
    "tool",
    "run",
    "--quiet",
    "--python",
    sys.executable,
    "pip@26.3",
)
HEAD = """# Licences of the dependencies

`make requirements` writes this page: the licences of the packages that `requirements.lock` installs
on Linux, as each package states its own.

| licence | packages |
| --- | --- |
"""


def licence(metadata: dict[str, Any]) -> str:
    """The licence as an SPDX expression, else as free text of one line, else by the classifier."""
    classifiers = [
        line.split(" :: ")[-1]
        for line in metadata.get("classifier", ())
        if line.startswith("License")
    ]
    stated = (metadata.get("license_expression"), metadata.get("license"), *classifiers)
    return next((text for text in stated if text and "\n" not in text), "not stated")


def main() -> None:
    pins = re.findall(
        r"^\S+==.*?(?= \\$)", (DOCS.parent / "requirements.lock").read_text(encoding="utf-8"), re.M
    )
    command = [
        *PIP,
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--quiet",
        "--report",
        "-",
        *pins,
    ]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = defaultdict(list)
    for package in report["install"]:
        packages[licence(package["metadata"])].append(
            package["metadata"]["name"].lower().replace("_", "-")
        )
    rows = (f"| {text} | {', '.join(sorted(packages[text]))} |\n" for text in sorted(packages))
    (DOCS / "licenses.md").write_text(HEAD + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
