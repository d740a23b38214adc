"""Build a static page that scores text with a detector in the browser: `make page MODEL=runs/mine`.

python examples/page/build.py --model data/models/english-h256-l4 --output_dir page
python -m http.server --directory page --bind 127.0.0.1
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).parent
PAGE_FILES = ("index.html", "main.js")
NPM_FILES = ("package.json", "package-lock.json")
NPM_INSTALL = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
LIBRARY_FILES = (
    "@huggingface/tokenizers/dist/tokenizers.min.mjs",
    "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
)
EXPORT = (
    "-m",
    "electra_albert",
    "export",
    "--kind",
    "discriminator",
    "--format",
    "transformers.js",
)


def build(model: str, folder: Path) -> None:
    """Write page, JavaScript libraries and model into a folder, over an earlier page."""
    (folder / "lib").mkdir(parents=True, exist_ok=True)
    for name in PAGE_FILES:
        shutil.copy(SOURCE / name, folder)
    with TemporaryDirectory() as temporary:
        for name in NPM_FILES:
            shutil.copy(SOURCE / name, temporary)
        subprocess.run(NPM_INSTALL, cwd=temporary, check=True)
        for name in LIBRARY_FILES:
            shutil.copy(Path(temporary, "node_modules", name), folder / "lib")
    subprocess.run(
        [sys.executable, *EXPORT, "--model", model, "--output_dir", folder / "model"], check=True
    )
    (folder / "model" / "onnx" / "model.onnx").unlink()  # float32, which the page does not load


def main() -> None:
    """Build the page and print its size."""
    parser = argparse.ArgumentParser(
        description="Build a static page that scores text in the browser."
    )
    parser.add_argument(
        "--model", required=True, help="Run folder or model folder with a discriminator."
    )
    parser.add_argument(
        "--output_dir", type=Path, required=True, help="Folder to write the page to."
    )
    options = parser.parse_args()
    if shutil.which("npm") is None:
        sys.exit(
            "npm is not installed; the page needs two packages of its registry: install Node.js"
        )
    try:
        build(options.model, options.output_dir)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)  # the command has printed the reason
    size = sum(file.stat().st_size for file in options.output_dir.rglob("*") if file.is_file())
    print(
        f"{size / 1e6:.1f} MB; open it with: python -m http.server --directory "
        f"{options.output_dir} --bind 127.0.0.1"
    )


if __name__ == "__main__":
    main()
