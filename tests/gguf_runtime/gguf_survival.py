"""Reads, validates and loads damaged model files, each in a child, and reports how the child ended.

A program: its first argument is a sound file, every line of stdin a list of patches [[position,
hex], ...], every line of stdout how a process ended that used the file with these patches. Each is
tried in a child of its own, so that a crash costs one child.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import llama_cpp

from edgespec.errors import ModelError
from edgespec_runtimes.gguf.file.header import read_header
from edgespec_runtimes.gguf.file.validation import validate
from edgespec_runtimes.gguf.llama import loading

TEXTS = (b"the tea is on the table\n", bytes(range(1, 256)), b"<|endoftext|>", b"")
REFUSED, ANSWERED, LOAD_FAILED, CONTEXT_FAILED, DECODE_FAILED = 40, 41, 42, 43, 44
OUTCOMES = {
    REFUSED: "refused",
    ANSWERED: "answered",
    LOAD_FAILED: "load failed",
    CONTEXT_FAILED: "context failed",
    DECODE_FAILED: "decode failed",
}
TIME_LIMIT_S = 60
MEMORY_LIMIT_BYTES = 2 << 30


def outcomes(path: Path, contents: Iterable[bytes]) -> Iterator[str]:
    """A word or a signal's name for each content: the end of the child that used it as `path`."""
    silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    loading.start()
    for content in contents:
        path.write_bytes(content)
        child = os.fork()
        if child == 0:
            os._exit(use(path))
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            yield signal.Signals(os.WTERMSIG(status)).name
        else:
            code = os.WEXITSTATUS(status)
            yield OUTCOMES.get(code, f"exit {code}")


def use(path: Path) -> int:
    """Everything that a runtime does with a model, as an exit code."""
    signal.alarm(TIME_LIMIT_S)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["GGML_NO_BACKTRACE"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        validate(read_header(path))
    except ModelError:
        return REFUSED
    only_vocabulary = llama_cpp.llama_model_default_params()
    only_vocabulary.vocab_only = True
    use_vocabulary(llama_cpp.llama_model_load_from_file(bytes(path), only_vocabulary))
    for repacked in (False, True):
        parameters = llama_cpp.llama_model_default_params()
        parameters.load_mode = 0 if repacked else 1
        parameters.use_extra_bufts = repacked and loading.packs()
        model = llama_cpp.llama_model_load_from_file(bytes(path), parameters)
        if not model:
            return LOAD_FAILED
        code = decode(model)
        if code != ANSWERED:
            return code
    return ANSWERED


def use_vocabulary(model: object) -> None:
    if not model:
        return
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    piece = ctypes.create_string_buffer(1 << 16)
    for token in range(llama_cpp.llama_vocab_n_tokens(vocabulary)):
        llama_cpp.llama_token_to_piece(vocabulary, token, piece, len(piece), 0, True)
        llama_cpp.llama_vocab_get_text(vocabulary, token)
        llama_cpp.llama_vocab_get_attr(vocabulary, token)
        llama_cpp.llama_vocab_is_eog(vocabulary, token)
    ids = (llama_cpp.llama_token * 4096)()
    for text in TEXTS:
        for special in (False, True):
            llama_cpp.llama_tokenize(vocabulary, text, len(text), ids, len(ids), special, special)


def decode(model: object) -> int:
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 64, 32, 32
    parameters.n_threads = parameters.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, parameters)
    if not context:
        return CONTEXT_FAILED
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    for size in (7, 1):
        tokens = (llama_cpp.llama_token * size)(*(index % n_vocab for index in range(size)))
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, size)):
            return DECODE_FAILED
        logits = llama_cpp.llama_get_logits_ith(context, -1)
        sum(logits[index] for index in range(n_vocab))
    llama_cpp.llama_free(context)
    return ANSWERED


def patched(sound: bytes, patches: Iterable[tuple[int, str]]) -> bytes:
    content = bytearray(sound)
    for position, replacement in patches:
        raw = bytes.fromhex(replacement)
        content[position : position + len(raw)] = raw
    return bytes(content)


def main(sound: Path) -> None:
    content = sound.read_bytes()
    damaged = (patched(content, json.loads(line)) for line in sys.stdin)
    for outcome in outcomes(sound.with_suffix(".damaged"), damaged):
        sys.stdout.write(f"{outcome}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
