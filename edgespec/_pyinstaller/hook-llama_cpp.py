"""Adds llama.cpp's libraries, which lie in a folder that only llama-cpp-python knows."""

from PyInstaller.utils.hooks import collect_dynamic_libs

binaries = collect_dynamic_libs("llama_cpp")
