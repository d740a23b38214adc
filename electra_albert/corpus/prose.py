"""Plain sentences out of a piece of documentation written in reStructuredText, Markdown, numpydoc or Google style.

Code, doctests, tables, headings, signatures and parameter lists are left out; the prose that describes a parameter
stays. What is kept is judged a sentence at a time: it must read like English.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from electra_albert.corpus.sentences import split_sentences, word_set

_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*$")
_TABLE = re.compile(r"\s*([=\-+|][=\-+| ]{2,}[=\-+|]|\|.*\||.*\S\s*\|\s*\S.*\|.*)\s*$")
_FENCE = re.compile(r"\s*(```|~~~|<pre|</pre|<code|</code|<hfoption|</hfoption)")
_PROMPT = re.compile(r"\s*(>>>|In \[\d+\]:|\$ |% )")
_DIRECTIVE = re.compile(r"\s*\.\. ?([\w:.+-]+)::\s*(.*)$")
_COMMENT = re.compile(r"\s*\.\.(\s|$)")
_PROSE_DIRECTIVES = word_set("note warning tip important caution attention hint seealso deprecated versionchanged")
_BULLET = re.compile(r"\s*(?:[-*+•]|\(?(?:\d{1,2}|[a-z])[.)])\s+(?=\S)")
_FIELD = re.compile(
    r"\s*[:@](?:param|type|return|rtype|returns|raise|raises|arg|key|keyword|var|ivar|cvar|yield)[^:]*:\s*"
)
_HEADING = re.compile(r"\s*#{1,6} ")
# `name : type`, `name (type, optional): text`, `name: text`, `**name** (type) -- text` and the like.
_PARAMETER = re.compile(
    r"\s*[*`]{0,3}[A-Za-z_][\w.]*[*`]{0,3}(?:, ?[*`]{0,3}[A-Za-z_][\w.]*[*`]{0,3}){0,6}"
    r"\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?::|--|—)(?:\s+|$)"
)
_NUMPY_PARAMETER = re.compile(r"\s*[*`]{0,2}[\w., *`\[\]{}()/=-]{1,60} : ")
_PARAMETER_SECTION = re.compile(
    r"\s*(args|arguments|parameters|other parameters|returns?|yields?|receives|raises|attributes|keyword arguments|"
    r"keyword args|inputs?|outputs?|options|methods|warns|keys|shape|kwargs|fields)\s*:?\s*$",
    re.IGNORECASE,
)
_SKIPPED_SECTION = re.compile(r"\s*(see also|references|bibliography)\s*:?\s*$", re.IGNORECASE)
_OTHER_SECTION = re.compile(r"\s*(notes?|examples?|warnings?|usage|description)\s*:?\s*$", re.IGNORECASE)

_INLINE = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), " "),
    (re.compile(r"\[([^\[\]]+)\]\([^()\s]*\)|\[(`[^`]+`)\]"), r"\1\2"),
    (re.compile(r"(?::[a-z]+)?:[a-z-]+:`[~!.]?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"), r"\1"),
    (re.compile(r"\s*\[(?:\d+|[A-Z][A-Za-z]+\d+)\]_"), ""),
    (re.compile(r"``([^`]*)``|`[~!.]*([^`]*)`_{0,2}"), r"\1\2"),
    (re.compile(r"\\ |(?<=\w)\\(?=s\b)"), ""),
    (re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<!\w)\|([\w .-]+)\|_?(?!\w)"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^<>]*>"), ""),
    (re.compile(r"\\([*_`|\\])"), r"\1"),
    (re.compile(r"::(?=\s|$)"), ":"),
)
_MARKUP = re.compile(r"[`*\[\\<|]|::")
_COLUMNS = re.compile(r"\S\s{3,}\S")
_FORMULA = re.compile(r"\\[A-Za-z]{2}|[-=]>|[!=<>]=|\$\S")
_LINK = re.compile(r"https?://|www\.|ftp://")

_WORD = re.compile(r"[A-Za-z][A-Za-z'’-]*")
_CODE_SIGN = re.compile(r"[=<>{}\[\]_\\|@#$%^~&*+/`]|\(\)|\w\.\w|[a-z][A-Z]")
_ENDING = re.compile(r"[.!?:;…][\"'”’)\]]*$")
_COMMON = word_set(
    "the a an of to in is are be for and or if that this it as by with on from not can will which when than at used "
    "was has have should may must does do no only all any into its their each other there these those you your we they "
    "but i he she his him her were been had would could so then also between such where same one two whether both"
)
_NEVER_FIRST = word_set("and or but of to with by for in on than then at from is are was be which")
_NEVER_LAST = _NEVER_FIRST | word_set("the a an if that can will has have should may must we they its their when as")
MIN_WORDS = 4
_MIN_LETTERS = 0.72  # of the characters that are not white space
_MAX_CODE_SIGNS = 0.2  # a word
_DEEPEST_HANG = 40  # columns


def plain_sentences(text: str, dropped: Counter[str]) -> list[str]:
    """The sentences of prose in one cleaned (dedented) docstring or page; `dropped` counts the rest by reason."""
    kept = []
    for paragraph in _paragraphs(text, dropped):
        if _MARKUP.search(paragraph):
            for pattern, replacement in _INLINE:
                paragraph = pattern.sub(replacement, paragraph)
        for sentence in split_sentences(" ".join(paragraph.split())):
            reason = _objection(sentence)
            if reason is None:
                kept.append(sentence)
            else:
                dropped[f"sentences_{reason}"] += 1
    return kept


def _objection(sentence: str) -> str | None:
    """Why `sentence` does not read like English prose, or None."""
    words = _WORD.findall(sentence)
    if len(words) < MIN_WORDS:
        return "too_short"
    if not (sentence[0].isalpha() or sentence[0] in "\"'“‘("):
        return "not_begun_by_a_letter"
    if _LINK.search(sentence):
        return "with_a_link"
    if _FORMULA.search(sentence):
        return "with_a_formula"
    if sum(map(str.isupper, sentence)) > 0.4 * len(sentence):
        return "in_capitals"
    solid = len(sentence) - sentence.count(" ")
    if sum(map(len, words)) < _MIN_LETTERS * solid:
        return "few_letters"
    if len(_CODE_SIGN.findall(sentence)) > _MAX_CODE_SIGNS * len(words):
        return "like_code"
    common = sum(word.lower() in _COMMON for word in words)
    if common == 0 or common < 0.12 * len(words):
        return "few_common_words"
    if words[0] in _NEVER_FIRST:
        return "a_fragment"
    if not _ENDING.search(sentence) and (len(words) < 5 or sentence[0].islower() or words[-1] in _NEVER_LAST):
        return "a_fragment"
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _paragraphs(text: str, dropped: Counter[str]) -> Iterator[str]:
    """Runs of prose lines joined to one line each, in order."""
    lines = text.expandtabs().split("\n")
    prose: list[str] = []
    indents = range(0)  # where a line must begin to go on with the paragraph
    for kind, line in _classified(lines, dropped):
        indent = _indent(line)
        if prose and (kind != "prose" or indent not in indents):
            yield " ".join(prose)
            prose = []
        if kind == "blank":
            continue
        if content := line.strip():
            hangs = kind == "begin" and not prose  # what follows a marker is indented deeper, by a width of its own
            indents = range(indent + 1, indent + _DEEPEST_HANG) if hangs else range(indent - 1, indent + 2)
            prose.append(content)
    if prose:
        yield " ".join(prose)


def _classified(lines: list[str], dropped: Counter[str]) -> Iterator[tuple[str, str]]:
    """("prose" | "begin" | "blank", line): what is not prose becomes a blank; "begin" opens a paragraph of its own."""
    in_parameters = in_skipped = False
    literal_indent: int | None = None  # lines indented deeper than this are a literal block
    for line, following in _outside_code(lines, dropped):
        indent = _indent(line)
        if literal_indent is not None and line:
            if indent > literal_indent:
                dropped["lines_of_code"] += 1
                yield "blank", ""
                continue
            literal_indent = None
        if not line or _UNDERLINE.match(line.lstrip()) or _HEADING.match(line):
            yield "blank", ""
        elif _TABLE.match(line) or _COLUMNS.search(line):
            dropped["lines_of_tables"] += 1
            yield "blank", ""
        elif (directive := _DIRECTIVE.match(line)) and directive[1] in _PROSE_DIRECTIVES:
            yield "begin", "" if directive[1].startswith(("version", "deprecated")) else directive[2]
        elif directive or _COMMENT.match(line):
            literal_indent = indent
            yield "blank", ""
        elif _opens_section(line, following):
            in_parameters = bool(_PARAMETER_SECTION.match(line))
            in_skipped = bool(_SKIPPED_SECTION.match(line))
            yield "blank", ""
        elif in_skipped:
            dropped["lines_of_references"] += 1
            yield "blank", ""
        else:
            if line.rstrip().endswith("::"):
                literal_indent = indent
            yield from _prose_line(line, following, in_parameters)


def _outside_code(lines: list[str], dropped: Counter[str]) -> Iterator[tuple[str, str]]:
    """Each line and the one after it; lines of fenced code and of doctests are emptied."""
    in_fence = in_doctest = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.strip():
            in_doctest = False
            line = ""
        elif _FENCE.match(line):
            in_fence = not in_fence and line.count("```") < 2 and "</" not in line
            line = ""
        else:
            in_doctest = (in_doctest or bool(_PROMPT.match(line))) and not in_fence
            if in_fence or in_doctest:
                dropped["lines_of_code"] += 1
                line = ""
        yield line, following


def _opens_section(line: str, following: str) -> bool:
    """True for an underlined heading and for the name of a section such as `Args:`."""
    is_underlined = bool(_UNDERLINE.match(following.lstrip())) and len(following.strip()) >= len(line.strip()) - 2
    return is_underlined or any(name.match(line) for name in (_PARAMETER_SECTION, _SKIPPED_SECTION, _OTHER_SECTION))


def _prose_line(line: str, following: str, in_parameters: bool) -> Iterator[tuple[str, str]]:
    """One line of running text, without the marker or the `name : type` it begins with."""
    bullet = _BULLET.match(line)
    if bullet:
        line = " " * _indent(line) + line[bullet.end() :]
    deeper = _indent(following) > _indent(line) and bool(following.strip())
    if field := _FIELD.match(line):
        yield "begin", " " * _indent(line) + line[field.end() :]
    elif in_parameters and not bullet and (_NUMPY_PARAMETER.match(line) or (deeper and ":" not in line.rstrip(":. "))):
        yield "blank", ""
    elif (in_parameters or bullet or deeper) and (parameter := _PARAMETER.match(line)):
        rest = line[parameter.end() :]
        yield "begin", " " * _indent(line) + rest.lstrip()
    else:
        yield ("begin" if bullet else "prose"), line
