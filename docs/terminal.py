"""Draw the output of a command line by line as a moving picture: docs/terminal.txt as
docs/images/terminal-light.svg and -dark.svg.

electra-albert pretrain 2>&1 | tee /tmp/output.txt    # of which docs/terminal.txt has some lines
python docs/terminal.py
"""

from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN = 860, 20, 14, 18
SECONDS_A_LINE, SECONDS_AT_END = 0.7, 6.0
COLOURS = {"light": ("#f6f8fa", "#1f2328", "#0969da"), "dark": ("#0d1117", "#e6edf3", "#6cb8f0")}


def draw(lines: list[str], theme: str) -> str:
    """The picture as SVG; a line that begins with $ is a command."""
    background, text, command = COLOURS[theme]
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    seconds = len(lines) * SECONDS_A_LINE + SECONDS_AT_END
    styles = []
    drawn = []
    for number, line in enumerate(lines):
        fill = command if line.startswith("$") else text
        y = MARGIN + (number + 0.75) * LINE_HEIGHT
        attributes = f'class="line" id="line{number}" x="{MARGIN}" y="{y:g}" fill="{fill}"'
        drawn.append(f'<text {attributes} xml:space="preserve">{escape(line)}</text>')
        begin = 100 * number * SECONDS_A_LINE / seconds
        frames = f"0%, {begin:.2f}% {{opacity: 0}} {begin + 0.01:.2f}%, 100% {{opacity: 1}}"
        styles.append(f"@keyframes show{number} {{{frames}}}")
        styles.append(f"#line{number} {{animation: show{number} {seconds:g}s infinite}}")
    font = f"font: {FONT_SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
    still = "@media (prefers-reduced-motion: reduce) {.line {animation: none !important}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">',
            "<style>",
            f".line {{{font}}}",
            *styles,
            still,
            "</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{background}"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write both pictures."""
    lines = (DOCS / "terminal.txt").read_text(encoding="utf-8").splitlines()
    for theme in COLOURS:
        file = DOCS / "images" / f"terminal-{theme}.svg"
        file.write_text(draw(lines, theme), encoding="utf-8")


if __name__ == "__main__":
    main()
