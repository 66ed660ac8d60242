"""Adds to a frozen application what edgespec finds by name: modules, runtimes and files of data."""

from importlib.metadata import distributions

from PyInstaller.utils.hooks import collect_data_files, collect_entry_point, collect_submodules

datas = collect_data_files("edgespec")
hiddenimports = collect_submodules("edgespec", filter=lambda name: "_pyinstaller" not in name)
for group in {entry.group for package in distributions() for entry in package.entry_points}:
    if group.startswith("edgespec."):
        metadata, modules = collect_entry_point(group)
        datas += metadata
        hiddenimports += modules
