"""Pictures of the page of a server that runs: `python tests/page_pictures.py FOLDER ADDRESS`.

Windows of three widths in both themes: the start, an answer with what is under the hood, settings.
`page.webp` and `page-small.webp` are those of docs/figures.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

from browser import WINDOWS, Browser, ask, in_theme

QUESTION = (
    "Write Python functions add, subtract, multiply and divide, each with type hints and a "
    "docstring. Code only."
)
TO_THE_TALLEST = """[...document.querySelectorAll('.column')]
  .sort((one, other) => parseInt(other.dataset.words) - parseInt(one.dataset.words))[0]
  .scrollIntoView({inline: 'center', block: 'nearest'})"""
SCENES = {
    "start": "document.querySelector('#new').click()",
    "answer": "[...document.querySelectorAll('#conversations .open')].at(-1).click()",
    "hood": "document.querySelector('#toggle-engine').click()",
    "words": "document.querySelector('#toggle-guesses').click()",
    "settings": "document.querySelector('#settings').open = true",
    "list": "document.querySelector('#open-library').click()",
}
"""Steps of a reader before each picture, one after the other."""


def main(folder: Path, address: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with closing(Browser()) as page:
        in_theme(page, "light")
        page.resize(1280, 800)
        page.open(address)
        page.until("document.title !== 'edgespec'")
        page.run("document.querySelector('#toggle-engine').click()")
        ask(page, QUESTION)
        page.until("document.querySelector('.regenerate')", 600)
        time.sleep(3)  # the panel asks for figures every two seconds
        page.run(TO_THE_TALLEST)
        for name, scale in {"page": 1, "page-small": 0.55}.items():
            clip = {"x": 0, "y": 0, "width": 1280, "height": 800, "scale": scale}
            shown = page.screenshot(format="webp", quality=80, clip=clip)
            (folder / f"{name}.webp").write_bytes(shown)
        (folder / "live.png").write_bytes(page.screenshot())
        for theme in ("light", "dark"):
            in_theme(page, theme)
            for width, height in WINDOWS:
                page.resize(width, height)
                page.open(address)
                page.until("document.title !== 'edgespec'")
                for scene, action in SCENES.items():
                    page.run(action)
                    time.sleep(0.6)
                    path = folder / f"{scene}-{width}-{theme}.png"
                    path.write_bytes(page.screenshot())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
