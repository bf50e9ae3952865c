"""Hooks of mkdocs: what the site has beyond the files of `docs/`.

The README is the front page. A page of `docs/algorithms/` gets the code, the settings and the
results of its agent. The API reference has one page for each module that users import;
mkdocstrings writes it from the docstrings.
"""

import json
import pathlib
import posixpath
import re
import tomllib

import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import sebulba
import sebulba_agents
from sebulba.config.reference import agent_section

_ROOT = pathlib.Path(__file__).parent.parent
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "agents/README.md": "agents.md",
}
"""The page of each Markdown file outside of `docs/`."""

_KEYWORDS = {
    "add_an_environment.md": ["atari"],
    "devices.md": ["multi-gpu", "tpu"],
    "choose_settings.md": ["defaults", "hyperparameters"],
    "evaluate.md": ["video"],
    "performance.md": ["slow", "speed"],
    "reproducibility.md": ["seed", "deterministic"],
    "resume.md": ["resume", "checkpoint"],
    "tutorials/own_network.md": ["network"],
    "tutorials/recurrence.md": ["lstm", "recurrent"],
    "tutorials/replay.md": ["replay"],
}
"""Words that a new user searches for and that the title of the page does not have."""

_AGENT_FILTERS = [
    "!^_",
    # The methods of every agent are on the page of `sebulba.agent`.
    "!^(init_.*|act|advance_actor_state|shard_actor_state|optimize|num_updates_per_cycle"
    "|actor_networks)$",
]
_CONTRACT = ("types", "agent", "pytree", "ranges", "errors")
_SETTINGS = {"config", "replay_config"}  # in the tables of the algorithms' pages
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the version, the repository and the pages of the API reference."""
    config.site_name = f"{config.site_name} {sebulba.__version__}"
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    config.repo_url = project.get("urls", {}).get("Repository")
    config.repo_name = "Repository" if config.repo_url else None
    sections = {title: pages for each in config.nav for title, pages in each.items()}
    (api,) = [each for each in sections["Reference"] if isinstance(each, dict)]
    api["API"] = [{name: f"reference/{name}.md"} for name in _api()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of `docs/`, and the pages of the reference."""
    for source, target in _PAGES.items():
        files.append(File.generated(config, target, content=_moved(source)))
    for name, content in _api().items():
        text = f"# {name} {{#{name}}}\n\n{content}"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    files.remove(files.src_uris["site.py"])
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Add the words to search for, and the generated parts of an algorithm's page."""
    source = page.file.src_uri
    page.meta["tags"] = _KEYWORDS.get(source, [])
    if source == "CHANGELOG.md":
        page.meta["search"] = {"boost": 0.1}
    if posixpath.dirname(source) != "algorithms":
        return markdown
    return markdown + _algorithm(pathlib.PurePath(source).stem)


def on_page_content(html: str, **_: object) -> str:
    """Keep source code out of the search."""
    source = '<details class="mkdocstrings-source"'
    return html.replace(source, f"{source} data-search-exclude")


def _algorithm(name: str) -> str:
    """Return what the page of an agent has from its code, its settings and its records."""
    module = sebulba_agents.AGENTS[name].factory.partition(":")[0]
    configs = [
        f"`{path.stem}`"
        for path in sorted((_ROOT / "configs").glob("*.yaml"))
        if yaml.safe_load(path.read_text())["agent"]["name"] == name
    ]
    return "\n".join(
        [
            "",
            *_curves(name),
            "## Settings\n",
            agent_section(name),
            f"Configs that come with Sebulba: {', '.join(configs)}.\n",
            "## In the code\n",
            f"::: {module}",
            "    options:",
            "      heading_level: 3",
            "      show_source: true",
            f"      filters: {_AGENT_FILTERS}",
            "",
        ]
    )


def _curves(name: str) -> list[str]:
    """Return the rows and the curves of the results page that belong to an agent."""
    page = (_ROOT / "docs" / "results.md").read_text()
    rows, images = [], {}
    for record in sorted((_ROOT / "docs" / "results" / "records").glob("*/")):
        config = json.loads(next(record.glob("seed-*.json")).read_text())["config"]
        if config["agent.name"] == name:
            rows += re.findall(rf"^\| `{record.name}` .*\| `\w.*\|$", page, re.MULTILINE)
            task = re.escape(config["env.id"])
            (images[task],) = re.findall(rf"^!\[Returns in {task} .*\)$", page, re.MULTILINE)
    if not rows:
        return []
    (header,) = re.findall(r"^\| config \| environment .*\n\|.*\|$", page, re.MULTILINE)
    links = [each.replace("](results/", "](../results/") + "\n" for each in images.values()]
    return [
        "## Results\n",
        "[Results](../results.md) explains the columns and has the commands. Curves of other"
        " algorithms are from the same environment.\n",
        header,
        *rows,
        "",
        *links,
    ]


def _api() -> dict[str, str]:
    """Return the content of the pages of the reference, by the name of their module."""
    names = [f"sebulba.{each}" for each in _CONTRACT]
    names += _modules("sebulba.toolkit", _ROOT / "sebulba" / "toolkit")
    pages = {"sebulba": _top_level()} | {name: f"::: {name}\n" for name in names}
    own_page = {entry.factory.partition(":")[0] for entry in sebulba_agents.AGENTS.values()}
    own_page |= {f"sebulba_agents.{each}" for each in _SETTINGS}
    shared = _modules("sebulba_agents", _ROOT / "agents" / "sebulba_agents")
    return pages | {
        name: f"::: {name}\n    options: {{filters: {_AGENT_FILTERS}}}\n"
        for name in shared
        if name not in own_page
    }


def _top_level() -> str:
    """Return the content of the page of what `import sebulba` provides: functions first."""
    contract = {f"sebulba.{each}" for each in _CONTRACT}  # has its own pages
    homes = {
        f"sebulba.{name}": f"{home}.{name}"
        for name, home in sorted(sebulba._HOMES.items(), key=lambda item: item[0][0].isupper())
        if home not in contract
    }
    homes["sebulba.evaluation.policy.Policy"] = "sebulba.evaluation.policy.Policy"
    text = "What `import sebulba` provides. [Train from Python](../python.md) has examples.\n"
    return text + "".join(
        f"\n::: {home}\n    options:\n      show_root_heading: true\n      heading_level: 2\n"
        f"      show_root_toc_entry: true\n      heading: {heading}\n"
        "      filters: ['!^_(?!_call__)']\n"  # a policy is called
        for heading, home in homes.items()
    )


def _modules(package: str, folder: pathlib.Path) -> list[str]:
    """Return the public modules and packages of a package."""
    names = sorted(path.stem for path in folder.iterdir() if path.stem[0] != "_")
    return [f"{package}.{name}" for name in names]


def _moved(source: str) -> str:
    """Return the text of a file outside of `docs/`, with its links as they are from `docs/`."""

    def from_docs(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), match["path"]))
        return f"]({_PAGES.get(path) or path.removeprefix('docs/')}"

    return _LINK.sub(from_docs, (_ROOT / source).read_text())
