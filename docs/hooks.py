"""Hook of mkdocs: an option or a name in the text is not broken at its hyphens."""

import re
from typing import Any

_CODE = re.compile(r"<code>[^<]*</code>")
_HYPHENATED = re.compile(r"--[\w.-]+|(?<![\w/.-])\w+(?:-\w+)+(?![\w/.-])")


def on_page_content(html: str, **_: Any) -> str:
    """Mark options and names in code, for docs/stylesheets/site.css."""
    return _CODE.sub(
        lambda code: _HYPHENATED.sub(r'<span class="hyphenated">\g<0></span>', code[0]), html
    )
