"""Hook of mkdocs: an option in the text is not broken at its hyphens."""

import re
from typing import Any

_CODE = re.compile(r"<code>[^<]*</code>")
_OPTION = re.compile(r"--[\w.-]+")


def on_page_content(html: str, **_: Any) -> str:
    """Mark the options in code, for docs/stylesheets/site.css."""
    return _CODE.sub(lambda code: _OPTION.sub(r'<span class="option">\g<0></span>', code[0]), html)
