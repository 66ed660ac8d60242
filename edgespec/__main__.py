"""Entry point of the process, as `edgespec` and as `python -m edgespec`."""

from __future__ import annotations

import os
import sys

_INTERRUPTED = 130
_ENDING = b"edgespec: error: interrupted\n"
_OPENSSL_HASHES = "_hashlib"
_OWN_HASHES = ("_md5", "_sha1", "_sha3", "_blake2")
"""CPython's own modules of hashes, beside one or two for SHA-2; some builds leave them out."""


def main() -> int:
    """The command line; Ctrl-C, SIGTERM and SIGHUP during its imports end it as later ones do."""
    ended: list[int] = []
    exit_code = _INTERRUPTED
    try:
        _mind_signals()
        import atexit

        atexit.register(_end_at_once, ended)  # the first one is called last
        if not _hashes_much(sys.argv[1:]):
            _leave_out_openssl()
        from edgespec.cli import command_line

        exit_code = command_line.main()
    except (KeyboardInterrupt, RuntimeError) as error:
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):  # made into another by 3.11
            raise
        _end()
    if exit_code == _INTERRUPTED:
        # CPython remembers an interrupt of an import and would end by the signal, not by the code
        os._exit(exit_code)
    ended.append(exit_code)
    return exit_code


def _end_at_once(ended: list[int]) -> None:
    """Leave out what libraries do when a process exits: CUDA's touch 38 MiB for it, which no budget
    has. Everything that is edgespec's is closed by then."""
    if ended:
        os._exit(ended[0])


def _mind_signals() -> None:
    """Have Ctrl-C, SIGTERM and SIGHUP end the process, unless they are ignored. An exception would
    be lost in a callback, of which each import has one."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)


def _end(*_: object) -> None:
    try:
        os.write(2, _ENDING)
    finally:
        os._exit(_INTERRUPTED)


def _hashes_much(arguments: list[str]) -> bool:
    """True if downloads or prefixes may be verified, up to gigabytes, which OpenSSL's hashes do
    several times faster."""
    flags = ("-hf", "--hf", "--prompt-cache")
    return arguments[:1] == ["models"] or any(word.startswith(flags) for word in arguments)


def _leave_out_openssl() -> None:
    """Give hashlib the interpreter's own hashes, if it has them: with OpenSSL's, a library of 4 MiB
    is in the process that a budget is kept for. TLS is not concerned."""
    from importlib.util import find_spec

    sha2 = ("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")
    if _OPENSSL_HASHES in sys.modules or None in map(find_spec, (*_OWN_HASHES, *sha2)):
        return
    sys.modules[_OPENSSL_HASHES] = None  # type: ignore[assignment]
    try:
        import hmac  # noqa: F401 - imports hashlib, too
    finally:
        del sys.modules[_OPENSSL_HASHES]


if __name__ == "__main__":
    sys.exit(main())
