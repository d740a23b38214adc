"""Tiny commands of every kind, their undisturbed results, and working folders for trials."""

import hashlib
import json
import lzma
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.processes import Ended, Launcher, Process
from electra_albert.files import SAMPLE_TEXT

REFUSED = (2, 3, 4)  # exit codes
TEXT_BYTES = 60_000
# Keys of JSON: times, the tokenizer of a resumed run, which is its own copy, and hashes of files.
_NOT_COMPARED = {
    *("tokens_per_second", "data_wait", "elapsed_seconds", "time", "seconds", "process_seconds"),
    *("tokenizer", "size", "sha256", "hash"),
}
# Files that differ between equal runs, and checkpoints that were renamed aside.
_OTHERWISE = re.compile(
    r"(^|/)(log\.txt|environment\.json|report\.html|[\w.-]*lock|(corpus|[\w.-]*checked)\.json"
    r"|tensorboard/.*"
    r"|[^/]*\.aside-\d+(/.*)?)$"
)
_CHECKPOINT = re.compile(r"(.*)/step-\d+")
_UNREAD = re.compile(
    r"tensorboard/|generator_warmup/|log\.txt$|report\.html$|lock$|\.md$|command\.txt$"
)
_NAMED_AT_RANDOM = re.compile(r"[0-9a-f]{16}|(?<=\.tmp)\w{6}|(?<=tfevents).*")
_LABELLED = {"train.csv": slice(48), "dev.csv": slice(48, 64)}  # lines of the text
_CORPUS = (
    "--corpus text.txt --max_seq_length 32 --preprocessing_num_workers 1 --prepared_dir prepared"
)
_SIZES = """--model.hidden_size 16 --model.num_hidden_layers 2 --model.num_attention_heads 2
--model.embedding_size 8 --model.intermediate_size 32 --model.hidden_dropout_prob 0.1
--rtd.generator_size 0.5 --max_steps 8 --warmup_steps 2 --logging_steps 3 --save_steps 2
--eval_steps 4 --eval_examples 8 --device cpu --per_device_train_batch_size 4
--per_device_eval_batch_size 8 --gradient_accumulation_steps 2 --precision fp32"""
_PREPARE = f"-m electra_albert prepare {_CORPUS} --vocab_size 200"
_WARMUP = f"""Pretraining.py {_CORPUS} {_SIZES} --prepared_dir warm/prepared --init_from exported
--rtd.generator_warmup_steps 6 --output_dir warm"""
_PRETRAIN = f"Pretraining.py {_CORPUS} {_SIZES} --vocab_size 200 --output_dir"
_TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node 2"
_TUNING = """--train_file train.csv --validation_file dev.csv --model run --seeds 2
--num_train_epochs 2 --device cpu --max_seq_length 32 --per_device_train_batch_size 16
--logging_steps 4 --precision fp32 --hidden_dropout_prob 0.1"""


class Program(NamedTuple):
    """A command, the program whose result it reads, the folder that it makes, and a kill that
    leaves half of it.
    """

    argv: str
    reads: str = ""
    makes: str = ""
    halfway: str = ""


PROGRAMS = {
    "prepare": Program(_PREPARE, "", "prepared", "kill write 1 *train/*tokens.bin"),
    "pretrain": Program(
        f"{_PRETRAIN} run", "prepare", "run", "kill mkdir 1 *writing-*-step-0000006"
    ),
    "export": Program(
        "-m electra_albert export --model run --kind discriminator --output_dir exported",
        "pretrain",
        "exported",
    ),
    "warmup": Program(_WARMUP, "export", "warm", "kill mkdir 2 *writing-*-step-0000006"),
    "finetune": Program(
        f"Finetuning.py {_TUNING} --output_dir tuned",
        "pretrain",
        "tuned",
        "kill mkdir 1 */seed-43/checkpoints",
    ),
    "demo": Program("LM_DEMO.py --gen run/generator --input lines.txt", "pretrain"),
    "plan": Program("Pretraining.py --config options.yaml --dry_run --prepared_dir prepared"),
    "ranks": Program(f"{_TORCHRUN} {_PRETRAIN} two --ddp_timeout 10", "prepare", "two"),
}
Files = dict[str, str]  # hash of each file, by path; folders too


class Undisturbed(NamedTuple):
    """A program's run without a fault: its folder, files and file operations, and the seconds it
    took.
    """

    folder: Path
    files: Files
    operations: list[tuple[str, str]]  # name, and path with * for what differs between runs
    seconds: float


class Bench:
    """Starts programs in working folders; compares their files with those of undisturbed runs."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self.launcher = Launcher(folder)
        self.undisturbed: Callable[[str], Undisturbed] = cache(self._run)
        self._fresh_seconds: Callable[[str], float] = cache(self._measure)
        self._half: Callable[[str], Path] = cache(self._run_half)

    def work(self, program: str, *, is_half: bool = False, name: str = "") -> Path:
        """A new folder with everything that a program reads, and a half-done result if is_half."""
        self._count += 1
        folder = self._folder / (name or f"work-{self._count}")
        _, reads, makes, _ = PROGRAMS[program]
        folder.mkdir()
        with lzma.open(SAMPLE_TEXT) as file:
            text = file.read(TEXT_BYTES).decode(errors="ignore")
        lines = [line[:80] for line in text.replace('"', "").splitlines() if len(line) > 20]
        rows = [f'"{line}",{number % 2}' for number, line in enumerate(lines)]
        files = {
            "text.txt": text,
            "lines.txt": "The army was [MASK] than before.\nThey met in the town.\n",
        }
        files |= {
            path: "\n".join(["text,label", *rows[part], ""]) for path, part in _LABELLED.items()
        }
        for path, content in files.items():
            (folder / path).write_text(content, encoding="utf-8")
        sources = {PROGRAMS[reads].makes: self.undisturbed(reads).folder} if reads else {}
        sources |= {makes: self._half(program)} if is_half and makes else {}
        for path, source in sources.items():
            shutil.copytree(source / path, folder / path)
        return folder

    def remove_work(self) -> None:
        """Delete the folders of all trials."""
        for folder in self._folder.glob("work-*"):
            shutil.rmtree(folder)

    def start(
        self, program: str, folder: Path, fault: str = "", *, is_fresh: bool = False, **more: str
    ) -> Process:
        """Start a program; a fault of ranks is that of rank 0."""
        if program == "ranks":
            is_fresh, more = True, {"rank": "0", **more}
        return self.launcher.start(
            PROGRAMS[program].argv.split(), folder, fault, is_fresh=is_fresh, **more
        )

    def finish(
        self, program: str, folder: Path, fault: str = "", *, is_fresh: bool = False, **more: str
    ) -> Ended:
        """Run a program to its end, or kill it after a share of its undisturbed time."""
        kind, _, share = fault.partition(" ")
        if kind != "after":
            return self.start(program, folder, fault, is_fresh=is_fresh, **more).wait()
        seconds = self._fresh_seconds(program) if is_fresh else self.undisturbed(program).seconds
        ended = self.start(program, folder, is_fresh=is_fresh).wait(seconds * float(share))
        return ended._replace(code=-signal.SIGKILL) if ended.code is None else ended

    def again(
        self, program: str, folder: Path, *, is_fresh: bool = False, forgiven: Sequence[str] = ()
    ) -> str:
        """Run the command again without a fault; describe what differs from the undisturbed run."""
        ended = self.finish(program, folder, is_fresh=is_fresh)
        return problem(ended) or self.difference(program, folder, ended, forgiven)

    def difference(
        self, program: str, folder: Path, ended: Ended, forgiven: Sequence[str] = ()
    ) -> str:
        """Describe the files that differ from those of the undisturbed run, except those that match
        `forgiven`.
        """
        return difference(
            files_of(program, folder, ended), self.undisturbed(program).files, forgiven
        )

    def faults(self, program: str, action: str) -> list[str]:
        """A fault at each file operation of a program, but only at a few of those of logs."""
        operations, found = self.undisturbed(program).operations, []
        for index, (name, path) in enumerate(operations):
            count = sum(
                other == name and fnmatchcase(one, path) for other, one in operations[: index + 1]
            )
            if count <= 2 or not re.search(r"tensorboard/|log\.txt$", path):
                found.append(f"{action} {name} {count} {path}")
        return found

    def files_read(self, program: str) -> list[str]:
        """Patterns of the files that a program reads when its half-done result is there."""
        folder = self.work(program, is_half=True)
        paths = (
            path.relative_to(folder).as_posix()
            for path in sorted(folder.glob("*/**/*"))
            if path.is_file()
        )
        return [_NAMED_AT_RANDOM.sub("*", path) for path in paths if not _UNREAD.search(path)]

    def _run(self, program: str) -> Undisturbed:
        folder, log = self.work(program, name=program), self._folder / f"{program}.operations"
        log.touch()
        ended = self.finish(program, folder, log=str(log))
        assert ended.code == 0, ended.err
        words = (line.partition(" ")[::2] for line in log.read_text().splitlines())
        operations = [(name, _NAMED_AT_RANDOM.sub("*", path)) for name, path in words]
        return Undisturbed(folder, files_of(program, folder, ended), operations, ended.seconds)

    def _measure(self, program: str) -> float:
        ended = self.finish(program, self.work(program), is_fresh=True)
        assert ended.code == 0, ended.err
        return ended.seconds

    def _run_half(self, program: str) -> Path:
        if not (fault := PROGRAMS[program].halfway):
            return self.undisturbed(program).folder
        folder = self.work(program, name=f"half-{program}")
        ended = self.finish(program, folder, fault)
        assert ended.code == -signal.SIGKILL, ended.err
        return folder


def problem(ended: Ended, codes: Sequence[int] = (0,)) -> str:
    """Describe what is wrong with the end of a command: "" for one of the exit codes and at most
    one error line.
    """
    last = (ended.err.strip().splitlines() or ["no output"])[-1][:200]
    errors = sum(line.startswith("error: ") for line in ended.err.splitlines())
    if ended.code is None:
        return f"did not end within {ended.seconds:.0f} seconds"
    if "Traceback (most recent call last)" in ended.err:
        return f"traceback, exit {ended.code}: {last}"
    if ended.code not in codes:
        return f"exit {ended.code}: {last}"
    return (
        f"exit {ended.code} with {errors} error lines: {last}"
        if ended.code in REFUSED and errors != 1
        else ""
    )


def difference(found: Files, wanted: Files, forgiven: Sequence[str] = ()) -> str:
    """Describe the first files that differ, except those whose path matches one of `forgiven`."""
    states = {
        name: "differs" if name in found else "is missing"
        for name in wanted
        if found.get(name) != wanted[name]
    }
    states |= {name: "is left over" for name in found if name not in wanted}
    kept = [
        f"{name} {how}"
        for name, how in states.items()
        if not any(fnmatchcase(name, one) for one in forgiven)
    ]
    return "; ".join(kept[:3])


def files_of(program: str, folder: Path, ended: Ended) -> Files:
    """Hashes of the files and folders that equal runs share; times in JSON do not count.

    Of a demo, of its output.
    """
    if not (made := PROGRAMS[program].makes):
        return {"the output": ended.out}
    paths = sorted(path.relative_to(folder).as_posix() for path in (folder / made).rglob("*"))
    pairs = [(path, _CHECKPOINT.match(path)) for path in paths if not _OTHERWISE.search(path)]
    newest = {found[1]: found[0] for _, found in pairs if found}
    return {
        path: _digest(folder / path)
        for path, found in pairs
        if not found or found[0] == newest[found[1]]
    }


def _digest(path: Path) -> str:
    content = path.read_bytes() if path.is_file() else b"a folder"
    if path.suffix in (".json", ".jsonl"):
        with suppress(ValueError, RecursionError):
            lines = content.splitlines() if path.suffix == ".jsonl" else [content]
            content = json.dumps([_comparable(json.loads(line)) for line in lines]).encode()
    return hashlib.sha256(content).hexdigest()


def _comparable(content: Any) -> Any:
    if isinstance(content, list):
        return [_comparable(one) for one in content]
    if isinstance(content, dict):
        return {
            name: _comparable(value) for name, value in content.items() if name not in _NOT_COMPARED
        }
    return content
