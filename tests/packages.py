"""Installed packages that are not installed: modules with metadata, for `sys.path`."""


def make_package(path, name, *, modules, entry_points, requires=()):
    """Writes a package as an installer would leave it in `path`.

    Args:
        path: created; to be put on `sys.path`.
        name: of the distribution.
        modules: the source of each module, by its name.
        entry_points: `{group: {name: "module:Name"}}`.
        requires: requirements, such as `numpy<3`.
    """
    info = path / f"{name}-1.5.dist-info"
    info.mkdir(parents=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.5"]
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    (info / "METADATA").write_text("\n".join(metadata) + "\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]", *(f"{point} = {value}" for point, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    for module, source in modules.items():
        (path / f"{module}.py").write_text(source)
