"""Draw the architecture as docs/images/architecture-light.svg and -dark.svg: `python
docs/architecture.py`.
"""

from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parent / "images"
WIDTH, HEIGHT = 960, 424
TOKEN_WIDTH, TOKEN_HEIGHT, GAP = 66, 30, 6
ORIGINAL = ("the", "cat", "sat", "on", "the", "mat")
MASKED = ("the", "[MASK]", "sat", "on", "the", "[MASK]")
CORRUPTED = ("the", "dog", "sat", "on", "the", "mat")
COLOURS = {  # text, faint text, line, box, generator, discriminator, table, replaced
    "light": (
        "#1f2328",
        "#59636e",
        "#818b98",
        "#f6f8fa",
        "#ddf4ff",
        "#dafbe1",
        "#fff8c5",
        "#ffcecb",
    ),
    "dark": (
        "#f0f6fc",
        "#9198a1",
        "#6e7681",
        "#21262d",
        "#123a63",
        "#12422a",
        "#4a3a08",
        "#6e2320",
    ),
}


class Drawing:
    """Elements of one SVG picture in the colours of one theme."""

    def __init__(self, theme: str) -> None:
        self.text_fill, self.faint, self.line, self.box, *self.fills = COLOURS[theme]
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: int = 14,
        *,
        bold: bool = False,
        faint: bool = False,
    ) -> None:
        """Words centred on x, with their baseline at y."""
        fill, weight = self.faint if faint else self.text_fill, ' font-weight="600"' if bold else ""
        style = f'font-size="{size}" fill="{fill}" text-anchor="middle"{weight}'
        self.parts.append(f'<text x="{x}" y="{y}" {style}>{escape(words)}</text>')

    def rectangle(
        self, x: float, y: float, width: float, height: float, fill: str, radius: int = 8
    ) -> None:
        shape = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}"'
        self.parts.append(f'<rect {shape} fill="{fill}" stroke="{self.line}"/>')

    def arrow(self, path: str, *, dashed: bool = False) -> None:
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        style = f'stroke="{self.line}" stroke-width="1.6" fill="none" marker-end="url(#head)"{dash}'
        self.parts.append(f'<path d="{path}" {style}/>')

    def tokens(self, x: float, y: float, words: tuple[str, ...], fills: dict[int, str]) -> None:
        """One box per token, from left to right."""
        for position, word in enumerate(words):
            left = x + position * (TOKEN_WIDTH + GAP)
            self.rectangle(
                left, y, TOKEN_WIDTH, TOKEN_HEIGHT, fills.get(position, self.box), radius=5
            )
            self.text(left + TOKEN_WIDTH / 2, y + 20, word, 13)

    def model(self, x: float, width: float, fill: str, lines: tuple[str, ...]) -> None:
        """A network: its name and the lines below it."""
        self.rectangle(x, 196, width, 92, fill)
        for number, line in enumerate(lines):
            self.text(x + width / 2, 223 + 24 * number, line, 13 if number else 17, bold=not number)

    def svg(self) -> str:
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto">'
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                f'width="{WIDTH}"'
                ' font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif" role="img">',
                "<title>Generator and discriminator share one factorised embedding table</title>",
                f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="{self.line}"/></marker></defs>',
                *self.parts,
                "</svg>\n",
            ]
        )


def draw(theme: str) -> str:
    """The picture in one theme, as SVG."""
    drawing = Drawing(theme)
    generator, discriminator, table, replaced = drawing.fills
    left, right, width = 12, 522, 6 * (TOKEN_WIDTH + GAP) - GAP
    middle, other = left + width / 2, right + width / 2
    drawing.arrow(f"M{left + width + 4} 333H480V63H{right - 6}", dashed=True)  # behind the table

    drawing.text(middle, 34, "some tokens are replaced by [MASK]", faint=True)
    drawing.tokens(left, 48, MASKED, {1: generator, 5: generator})
    drawing.text(other, 34, "the masked positions hold the generator's samples", faint=True)
    drawing.tokens(right, 48, CORRUPTED, {1: replaced, 5: discriminator})

    drawing.rectangle(left, 112, right + width - left, 54, table)
    drawing.text(WIDTH / 2, 135, "Shared factorised embeddings", 17, bold=True)
    drawing.text(
        WIDTH / 2,
        155,
        "tokens (V × E), positions, segments; each network maps E to its own hidden size",
        13,
    )

    lines = ("Generator", "a narrower ALBERT encoder", "masked-token head tied to the table")
    drawing.model(left + 84, 260, generator, lines)
    lines = (
        "Discriminator",
        "an ALBERT encoder: all layers share one block",
        "one logit per token",
    )
    drawing.model(right, width, discriminator, lines)
    drawing.text(418, 236, "Gumbel-softmax", 13, faint=True)
    drawing.text(418, 254, "sample,", 13, faint=True)
    drawing.text(418, 272, "no gradient", 13, faint=True)
    for x in (middle, other):
        for top in (78, 166, 288):
            drawing.arrow(f"M{x} {top}V{top + 28}")

    for position, word in ((1, "dog"), (5, "mat")):
        drawing.tokens(left + position * (TOKEN_WIDTH + GAP), 318, (word,), {0: generator})
    drawing.text(left + 249, 338, "predictions at the masks", 13, faint=True)
    drawing.text(middle, 372, "cross-entropy with the original token")
    labels = tuple(
        "original" if one == two else "replaced"
        for one, two in zip(ORIGINAL, CORRUPTED, strict=True)
    )
    drawing.tokens(right, 318, labels, {1: replaced})
    drawing.text(other, 372, "binary cross-entropy at every token")

    drawing.text(middle, 408, "after training: fills in masks", bold=True)
    drawing.text(other, 408, "after training: the encoder to fine-tune", bold=True)
    return drawing.svg()


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    for theme in COLOURS:
        (IMAGES / f"architecture-{theme}.svg").write_text(draw(theme), encoding="utf-8")


if __name__ == "__main__":
    main()
