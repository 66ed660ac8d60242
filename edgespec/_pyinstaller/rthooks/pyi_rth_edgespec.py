"""Lets a frozen application be started as the interpreter of edgespec's own programs."""

from edgespec.concurrency.own_processes import act_as_interpreter

act_as_interpreter()
