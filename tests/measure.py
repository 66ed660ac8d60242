"""Prints one of the measurements behind the records, as a table.

python tests/measure.py NAME ...
python tests/measure.py NAME --help
"""

from __future__ import annotations

import argparse
import pkgutil
import sys
from importlib import import_module

import measuring

NAMES = [module.name.replace("_", "-") for module in pkgutil.iter_modules(measuring.__path__)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", metavar="NAME", choices=NAMES, help=", ".join(NAMES))
    name = parser.parse_args(sys.argv[1:2]).name
    module = import_module(f"measuring.{name.replace('-', '_')}")
    parser = argparse.ArgumentParser(
        prog=f"measure.py {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    module.measure(parser.parse_args(sys.argv[2:]))


if __name__ == "__main__":
    main()
