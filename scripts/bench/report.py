"""Result files as lines on the terminal and as the page docs/benchmarks.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from specbench.hardware.profile import LENGTHS

from . import QUIET, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- remarks: written by hand, kept when the page is made anew -->", "<!-- end of remarks -->"
TITLES = {
    "ar": "AR against the transformers library",
    "floor": "A step against its own linear layers",
    "curve": "Verifying T tokens",
    "host": "Time outside the model's forward calls",
    "pld": "Prompt lookup",
    "memory": "Memory",
    "load": "Loading",
    "skipping": "Passes without some sublayers",
    "optimisation": "One KnapSpec search",
    "knapspec": "KnapSpec against AR",
    "host_skip": "Time outside the model: self-drafting methods",
    "longdoc": "What is skipped as the context grows",
    "order": "Methods that learn over a run, in several orders",
}
NOTES = {
    "ar": "Both through their generators, greedy, no stop ids. Prompts are read before and not timed; "
    "`hf_ar` continues from the same keys and values.",
    "floor": "One step's linear layers, the head included, called alone on one row each, against a whole decode step.",
    "curve": "Milliseconds of one verify pass of T rows behind a context, argmax included.",
    "host": "Everything between the start and the end of decoding that is not inside `Decoder.forward`; "
    "drafting of prompt lookup counts as host time.",
    "pld": "Decode time only, pooled: (sum of seconds / sum of tokens) of the base over the same of the method; 95 % "
    "BCa intervals over prompts. `hf_pld` takes the prompt's keys and values from our decoder, every later row is its "
    "own.",
    "memory": "Resident memory that no file backs, of a fresh process, above what it has after its imports; the limit "
    "is 1.15 x (weights + cache) + 64 MiB.",
    "load": "Fresh processes, files in the page cache. Reading the weights includes bringing them into the layout in "
    "which they are multiplied.",
    "skipping": "One token behind 200 cached ones, its id read back. The cost model is KnapSpec's, from a profile "
    "taken in the same process; its error is |predicted / measured - 1| over random sets of interior sublayers of all "
    "sizes.",
    "optimisation": "The full search with head and choice, on rows that the model generated itself. Its products: "
    "FLOPs of all cells' projections, of their attention scores and of the candidates' head, each at the rate that the "
    "model's own linear layers reach at that call's number of rows, taken in turns with the search. Thinner searches: "
    "time over the full one's; the loss is how many predicted tokens per second their best set (drafting at least one "
    "token) has less than the full search's, both judged on the whole window.",
    "knapspec": "Paired samples, greedy, decode time only, the methods in turns, state forgotten between samples; "
    "searches are inside. Variants answer the first samples only, without one precaution or without all.",
    "host_skip": "Everything between start and end of decoding that is not inside a forward pass, a sublayer call or a "
    "head call of a search. Settings are such that every method drafts and searches within a short answer; they say "
    "nothing about speed.",
    "longdoc": "KnapSpec's full search behind long prompts; the best set is taken even where plain decoding would win. "
    "Gains are predicted, not measured. With equal costs the search is told that attention costs what an MLP costs.",
    "order": "State is kept from sample to sample and forgotten between orders; AR is taken beside every answer. "
    "Windows are small, so that searches run at all.",
}
_CURVE_POINT = re.compile(r"t\((\d+)\) at (\d+)")


def row(figure: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    """One line: name, value, required, met, load."""
    required = _required(figure) or "-"
    load = block["load"]
    loads = "/".join(f"{load[key]:.2f}" for key in ("before", "during", "after"))
    return f"{figure['name']:<44} {_value(figure):>14}  {required:>9}  {_met(figure, block):<12} load {loads}"


def summary(result: Mapping[str, Any]) -> str:
    """How many requirements were reached, and which were not."""
    judged = [(figure, block) for figure, block in _all(result) if figure["met"] is not None]
    missed = [figure["name"] for figure, _ in judged if not figure["met"]]
    noisy = sum(_noisy(figure, block) for figure, block in judged)
    text = f"{len(judged) - len(missed)} of {len(judged)} required figures reached, {noisy} of them measured in noise"
    return text + (f"; not reached: {'; '.join(missed)}" if missed else "")


def render(result: Mapping[str, Any], old_page: str = "") -> str:
    """The page; remarks between the markers of the old page are kept."""
    parts = [
        "# Benchmarks",
        "Made by `python scripts/bench.py --render FILE` from the figures that `make bench` measures; only the remarks "
        "are written by hand.",
        *_machine(result),
        "## What is required, and what is reached",
        summary(result) + ".",
        *_missed(result),
        "## Remarks",
        f"{BEGIN}\n\n{remarks(old_page)}\n\n{END}",
    ]
    for name, block in result["blocks"].items():
        parts += _section(name, block)
    return "\n\n".join(parts) + "\n"


def remarks(page: str) -> str:
    """What stands between the markers of a page."""
    found = re.search(re.escape(BEGIN) + r"(.*?)" + re.escape(END), page, re.DOTALL)
    return (found.group(1).strip() if found else "") or "None."


def _machine(result: Mapping[str, Any]) -> Iterator[str]:
    machine, environment = result["machine"], result["environment"]
    cpu, versions = environment["cpu"], environment["versions"]
    lines = [
        f"- model `{machine['model']}` ({environment['target']['name']}), {machine['dtype']}, "
        f"{machine['threads']} threads, linear layers: {environment['linear_path']}",
        f"- {cpu['model']}, {cpu['usable_cores']} usable cores, instructions {_flags(cpu)}",
        f"- Python {environment['python']}, torch {versions['torch']}, transformers {versions['transformers']}",
    ]
    if machine["size"] != "full":
        lines.append(f"- **a {machine['size']} run: too few repeats to rely on**")
    yield "\n".join(lines)


def _flags(cpu: Mapping[str, Any]) -> str:
    return ", ".join(name for name, there in (cpu["flags"] or {}).items() if there) or "unknown"


def _missed(result: Mapping[str, Any]) -> Iterator[str]:
    lines = [
        f"- **not reached**: {figure['name']}: {_value(figure)}, required {_required(figure)}"
        + (" (measured in noise)" if _noisy(figure, block) else "")
        for figure, block in _all(result)
        if figure["met"] is False
    ]
    if lines:
        yield "\n".join(lines)


def _section(name: str, block: Mapping[str, Any]) -> Iterator[str]:
    load = block["load"]
    yield f"## {TITLES[name]}"
    yield NOTES[name]
    yield (
        f"`{block['command']}`, commit `{(block['commit'] or 'unknown')[:12]}`"
        f"{' with uncommitted changes' if block['dirty'] else ''}, {block['date']}, {block['seconds']:.0f} s. "
        f"Cores busy with other processes: {load['before']:.2f} before, {load['during']:.2f} during, "
        f"{load['after']:.2f} after" + (f": **noisy** (more than {QUIET})." if block["noisy"] else ".")
    )
    points = {f["name"]: f for f in block["figures"] if _CURVE_POINT.fullmatch(f["name"])}
    if points:
        yield _curve_table(points)
    rows = [_table_row(figure, block) for figure in block["figures"] if figure["name"] not in points]
    yield "\n".join(["| figure | value | required | met | more |", "|---|---|---|---|---|", *rows])


def _curve_table(points: Mapping[str, Mapping[str, Any]]) -> str:
    contexts = sorted({int(match.group(2)) for name in points if (match := _CURVE_POINT.fullmatch(name))})
    lines = ["| context | " + " | ".join(f"T = {length}" for length in LENGTHS) + " |", "|---" * 10 + "|"]
    for context in contexts:
        cells = [points[f"t({length}) at {context}"] for length in LENGTHS]
        texts = [f"{cell['value']:.1f}" + (" (noisy)" if cell["noisy"] else "") for cell in cells]
        lines.append(f"| {context} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def _table_row(figure: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    more = ", ".join(f"{key} {_number(value)}" for key, value in figure["detail"].items() if value is not None)
    cells = (figure["name"], _value(figure), _required(figure), _met(figure, block), more)
    return "| " + " | ".join(cells) + " |"


def _all(result: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for block in result["blocks"].values():
        for figure in block["figures"]:
            yield figure, block


def _noisy(figure: Mapping[str, Any], block: Mapping[str, Any]) -> bool:
    return bool(figure["noisy"] or block["noisy"])


def _met(figure: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    verdict = {None: "", True: "yes", False: "no"}[figure["met"]]
    return f"{verdict} (noisy)".strip() if _noisy(figure, block) else verdict


def _required(figure: Mapping[str, Any]) -> str:
    required = figure["required"]
    return "" if required is None else f"{required['sense']} {_number(required['limit'])}"


def _value(figure: Mapping[str, Any]) -> str:
    value = figure["value"]
    return "not a number" if value is None else f"{_number(value)} {figure['unit']}".strip()


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return (
        f"{value:.0f}"
        if abs(value) >= 1000
        else f"{value:.4g}"
        if abs(value) >= 10
        else f"{value:.3f}".rstrip("0").rstrip(".")
    )
