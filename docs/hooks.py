"""Hook of mkdocs: an option in the text is not broken at its hyphens."""

import re
from typing import Any

_OPTION = re.compile(r"<code>(?=--\S+</code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Mark code that is one option, for docs/stylesheets/site.css."""
    return _OPTION.sub('<code class="option">', html)
