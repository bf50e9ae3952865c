"""A program that is traced with shapes, and what its compiler says of it.

It can be compiled for devices that are not here: nothing runs.
"""

import collections
import dataclasses
import math
import re
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.aot.launches import Launches, count_launches
from sebulba.devices.memory import format_bytes
from sebulba.devices.xla_workarounds import equations
from sebulba.types import PyTree

_PROBLEM_WIDTH = 400  # characters of a compiler's error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A traced program of a run, which can be compiled for its devices."""

    name: str
    role: str  # actor or learner: the devices that run it
    traced: jax.stages.Traced
    arguments: PyTree  # shapes with shardings
    calls: int  # of an act cycle or of a learner cycle
    platform: str  # of its devices
    hosts: tuple[int, ...]  # of each of its devices
    # Of arguments and results, on a device: what is updated in place, and read or written in parts.
    bytes_in_place: int = 0
    # What one call hands to the next: its shapes before and after. Others would compile again.
    carried: tuple[PyTree, PyTree] = ((), ())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """Collectives of one kind, in one call of a program."""

    kind: str
    count: int
    bytes: int  # of the results on a device, all together
    is_in_loop: bool  # sent in every turn
    between: str = "devices"  # or hosts or slices, if they are farther apart


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """What a compiled program says of itself; sizes are bytes on each of its devices."""

    name: str
    role: str
    calls: int
    problem: str | None = None  # why it does not compile
    compile_s: float = 0.0
    arguments: int = 0
    results: int = 0
    reused: int = 0  # of the results, in the memory of donated arguments
    temporaries: int = 0
    code: int = 0
    total: int = 0
    collectives: tuple[Message, ...] = ()
    launches: Launches | None = None  # of a call
    unasked: tuple[str, ...] = ()  # copies, transfers and recompilations that nobody asked for
    flops: dict[str, float] = dataclasses.field(default_factory=dict)  # of products, by dtype
    least_bytes: int = 0  # arguments read once and results written once
    xla_bytes_accessed: float | None = None
    xla_optimal_s: float | None = None


def trace_program(
    name: str,
    function: Any,
    arguments: tuple[PyTree, ...],
    *,
    role: str,
    devices: Sequence[jax.Device],
    calls: int = 1,
    in_place: PyTree = (),
    carried: Callable[[PyTree], tuple[PyTree, PyTree]] = lambda results: ((), ()),
) -> Program:
    """Trace a jitted function with shapes.

    Args:
        name: the program's name.
        function: has a method `trace`.
        arguments: shapes with shardings.
        role: the role of its devices.
        devices: run it.
        calls: the number of calls in an act cycle or in a learner cycle.
        in_place: the arguments that a call updates in place, of which it may touch a small part.
        carried: takes the results; returns what a call takes, and gives to the next in its place.
    """
    traced = function.trace(*arguments)
    return Program(
        name=name,
        role=role,
        traced=traced,
        arguments=arguments,
        calls=calls,
        platform=devices[0].platform,
        hosts=tuple(each.process_index for each in devices),
        bytes_in_place=2 * bytes_on_device(in_place),
        carried=carried(traced.out_info),
    )


def placed_shapes(tree: PyTree, sharding: Any) -> PyTree:
    """Return the shapes of a tree with a sharding, and with their weak types."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            x.shape, x.dtype, sharding=sharding, weak_type=getattr(x, "weak_type", False)
        ),
        tree,
    )


def bytes_on_device(tree: PyTree) -> int:
    """Return the bytes of shapes with shardings on one of their devices, without padding."""

    def size(leaf: Any) -> int:
        shape = leaf.shape if leaf.sharding is None else leaf.sharding.shard_shape(leaf.shape)
        return math.prod(shape) * leaf.dtype.itemsize

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))


def compile_program(
    traced_program: Program, *, hosts_per_slice: int | None = None
) -> CompiledProgram:
    """Compile a program, and read what the compiler says of it.

    Args:
        traced_program: the program to compile for its devices.
        hosts_per_slice: the hosts of a TPU slice; None: all hosts are of one slice.
    """
    traced = traced_program.traced
    about: Any = {each: getattr(traced_program, each) for each in ("name", "role", "calls")}
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            compiled = traced.lower().compile()
        except Exception as error:  # the plugin's own
            problem = textwrap.shorten(str(error), _PROBLEM_WIDTH, placeholder=" …")
            return CompiledProgram(**about, problem=problem)
    compile_s = time.perf_counter() - started
    text, memory = compiled.as_text() or "", compiled.memory_analysis()
    cost: Any = compiled.cost_analysis() or {}
    collectives = read_collectives(
        text, hosts=traced_program.hosts, hosts_per_slice=hosts_per_slice
    )
    results = jax.tree.map(placed_shapes, traced.out_info, compiled.output_shardings)
    least_bytes = bytes_on_device((traced_program.arguments, results))
    optimal_s = cost.get("optimal_seconds", -1.0)
    return CompiledProgram(
        **about,
        compile_s=compile_s,
        arguments=memory.argument_size_in_bytes,
        results=memory.output_size_in_bytes,
        reused=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        total=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.generated_code_size_in_bytes,
        collectives=collectives,
        launches=count_launches(text),
        unasked=(
            *_unasked(text, collectives),
            *(
                str(each.message).split("\n")[0]
                for each in caught
                if "donated" in str(each.message)
            ),
            *_changes(*traced_program.carried),
        ),
        flops=product_flops(
            traced.jaxpr, traced_program.platform, num_devices=len(traced_program.hosts)
        ),
        least_bytes=max(0, least_bytes - traced_program.bytes_in_place),
        xla_bytes_accessed=cost.get("bytes accessed"),
        xla_optimal_s=optimal_s if optimal_s > 0 else None,  # negative: XLA does not know
    )


_COLLECTIVE = re.compile(
    r" = (?P<type>.*?) (?P<kind>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    r"|collective-broadcast|ragged-all-to-all)(?P<start>-start)?\("
)
# Of a reduction between slices: the hosts exchange what each device of a slice has reduced.
_SEND = re.compile(r" = \((?P<type>[^)]*?\]).* send\(.*megascale")
_ARRAY = re.compile(r"\b([a-z]+\d*[a-z\d]*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{.*?\})\}")
# As an array of all devices that is transposed and split: [groups,size]<=[shape]T(axes).
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|branch_computations)=\{?([%\w., -]+)")


def read_collectives(
    hlo: str, *, hosts: Sequence[int] = (), hosts_per_slice: int | None = None
) -> tuple[Message, ...]:
    """Return the collectives of a compiled program, from its text.

    Args:
        hlo: the text of `jax.stages.Compiled.as_text`.
        hosts: the host of each device of the program.
        hosts_per_slice: the hosts of a TPU slice; None: all hosts are of one slice.
    """
    called: dict[str, set[str]] = collections.defaultdict(set)
    bodies: set[str] = set()
    found: list[tuple[str, str, int, str]] = []
    computation = ""
    for line in hlo.splitlines():
        if header := _COMPUTATION.match(line):
            computation = header[1]
        for names in _CALLED.findall(line):
            called[computation] |= {name.strip(" %") for name in names.split(",")}
        bodies |= set(re.findall(r"body=%?([\w.-]+)", line))
        if match := _COLLECTIVE.search(line):
            sizes = [_num_bytes(*array) for array in _ARRAY.findall(match["type"])]
            # The result of a start has the operands before the results.
            if match["start"] and match["kind"] != "all-reduce":
                sizes = sizes[len(sizes) // 2 :]
            between = _between(line, hosts, hosts_per_slice)
            found.append((computation, match["kind"], sum(sizes), between))
        elif match := _SEND.search(line):
            size = sum(_num_bytes(*array) for array in _ARRAY.findall(match["type"]))
            found.append((computation, "send", size, "slices"))
    in_loops, new = set(bodies), set(bodies)
    while new:
        new = {name for each in new for name in called[each]} - in_loops
        in_loops |= new
    counts: dict[tuple[str, bool, str], list[int]] = collections.defaultdict(list)
    for computation, kind, size, between in found:
        counts[kind, computation in in_loops, between].append(size)
    return tuple(
        Message(
            kind=kind, count=len(sizes), bytes=sum(sizes), is_in_loop=is_in_loop, between=between
        )
        for (kind, is_in_loop, between), sizes in sorted(counts.items())
    )


def _between(line: str, hosts: Sequence[int], hosts_per_slice: int | None) -> str:
    """Return what the devices of a collective's groups are farthest apart in."""
    if explicit := _GROUPS.search(line):
        groups = [
            [int(device) for device in group.split(",")]
            for group in re.findall(r"\{([\d,]+)\}", explicit[1])
        ]
    elif iota := _IOTA_GROUPS.search(line):
        shape = [int(size) for size in iota[3].split(",")]
        axes = [int(axis) for axis in iota[4].split(",")] if iota[4] else None
        devices = np.arange(math.prod(shape)).reshape(shape).transpose(axes)
        groups = devices.reshape(int(iota[1]), int(iota[2])).tolist()
    else:
        groups = [list(range(len(hosts)))]
    if not hosts:
        return "devices"
    of_groups = [{hosts[device] for device in group} for group in groups]
    if hosts_per_slice and any(
        len({host // hosts_per_slice for host in of}) > 1 for of in of_groups
    ):
        return "slices"
    return "hosts" if any(len(of) > 1 for of in of_groups) else "devices"


def _num_bytes(dtype: str, shape: str) -> int:
    digits = re.search(r"\d+", dtype)
    bits = 8 if dtype == "pred" else int(digits[0]) if digits else 0
    return math.prod(int(size) for size in shape.split(",") if size) * bits // 8


def _unasked(hlo: str, collectives: Sequence[Message]) -> Iterator[str]:
    """Yield what slows a program and no line of its source asks for."""
    # Between slices, XLA makes a reduction of a reduction and a gather in each, and sends.
    asked = {"all-reduce", "reduce-scatter", "send"}
    if any(message.kind == "send" for message in collectives):
        asked.add("all-gather")
    for message in collectives:
        if message.kind not in asked:
            yield f"{message.count} {message.kind} of {format_bytes(message.bytes)}"
    callbacks = re.findall(r'custom_call_target="([^"]*callback[^"]*)"', hlo)
    transfers = re.findall(r" (infeed|outfeed)\(", hlo)
    transfers += re.findall(r"(is_host_transfer)=true(?!.*megascale)", hlo)
    for kind, count in collections.Counter(callbacks + transfers).items():
        yield f"{count} calls of the host ({kind})"
    if (donors := re.search(r"buffer_donor=\{ (.*?\}\)) \}", hlo)) is not None:
        yield f"{donors[1].count('(')} donated arrays that no result reuses"
    if re.search(r"\bf64\[", hlo):
        yield "float64"


def _changes(before: PyTree, after: PyTree) -> Iterator[str]:
    """Yield the leaves that one call returns in another type than it takes: the next compiles."""

    def describe(leaf: Any) -> str:
        return f"{'weak ' * bool(leaf.weak_type)}{leaf.dtype}{list(leaf.shape)}"

    leaves = jax.tree_util.tree_leaves_with_path(before)
    for (path, old), new in zip(leaves, jax.tree.leaves(after), strict=True):
        if describe(old) != describe(new):
            yield f"{jax.tree_util.keystr(path)}: {describe(old)} becomes {describe(new)}"


def product_flops(jaxpr: Any, platform: str, *, num_devices: int = 1) -> dict[str, float]:
    """Return the FLOPs of a program's matrix products and convolutions on a device, by dtype.

    It is the least number: sums, comparisons and branches that depend on a number are not counted,
    and a loop of unknown length is one turn. XLA counts every loop as one turn, and some of its
    plugins count nothing.

    Args:
        jaxpr: the program's jaxpr.
        platform: the platform of the devices.
        num_devices: the number of devices; what is not mapped over them is split evenly.
    """
    flops: dict[str, float] = collections.defaultdict(float)
    for equation, times in equations(jaxpr, platform):
        name = equation.primitive.name
        if name not in ("dot_general", "conv_general_dilated"):
            continue
        left, right = (variable.aval for variable in equation.invars[:2])
        size = math.prod(equation.outvars[0].aval.shape)
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            size *= math.prod(left.shape[axis] for axis in contracted)
        else:
            output_axis = equation.params["dimension_numbers"].rhs_spec[0]
            size *= math.prod(right.shape) // right.shape[output_axis]
            # The gradient of a strided convolution multiplies zeros, which XLA leaves out.
            size //= math.prod(equation.params["lhs_dilation"])
        flops[str(left.dtype)] += 2 * size * times / num_devices
    return dict(flops)
