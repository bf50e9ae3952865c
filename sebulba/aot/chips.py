"""Accelerators that programs can be compiled for without having one: their names and their peaks.

Imports no jax before it looks for devices.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from sebulba.devices.xla_flags import set_xla_flags
from sebulba.errors import ConfigError

if TYPE_CHECKING:
    import jax

GIGA, TERA = 1e9, 1e12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """What XLA has to know of a GPU that it compiles for."""

    name: str
    compute_capability: int  # the major version
    num_cores: int  # streaming multiprocessors
    clock_ghz: float
    l2_cache: int  # bytes

    def target_config(self, *, memory: int, bandwidth: float) -> str:
        """Return the GPU in the text form that XLA's plugin takes."""
        return f"""
            gpu_device_info {{
              threads_per_block_limit: 1024 threads_per_warp: 32
              shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448
              shared_memory_per_core: 233472 threads_per_core_limit: 2048
              core_count: {self.num_cores} fpus_per_core: 128
              block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
              memory_bandwidth: {int(bandwidth)} l2_cache_size: {self.l2_cache}
              clock_rate_ghz: {self.clock_ghz} device_memory_size: {memory}
              cuda_compute_capability {{ major: {self.compute_capability} }}
              registers_per_core_limit: 65536 registers_per_block_limit: 65536
            }}
            platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
            device_description_str: "{self.name}"
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """The published peaks of an accelerator, for dense products."""

    platform: Literal["tpu", "cuda"]
    bfloat16: float  # FLOP/s
    float32: float  # FLOP/s, at JAX's default precision: bfloat16 on a TPU, TF32 on a GPU
    memory: int  # bytes
    bandwidth: float  # of the memory, bytes/s
    source: str
    gpu: Gpu | None = None  # None: its plugin knows the chip


CHIPS = {
    "v5e": Chip(
        platform="tpu",
        bfloat16=197 * TERA,
        float32=197 * TERA,
        memory=16 * 2**30,
        bandwidth=819 * GIGA,
        source="https://docs.cloud.google.com/tpu/docs/v5e",
    ),
    "v6e": Chip(
        platform="tpu",
        bfloat16=918 * TERA,
        float32=918 * TERA,
        memory=32 * 2**30,
        bandwidth=1638 * GIGA,
        source="https://docs.cloud.google.com/tpu/docs/v6e",
    ),
    "h100": Chip(
        platform="cuda",
        bfloat16=989 * TERA,
        float32=495 * TERA,
        memory=int(80 * GIGA),
        bandwidth=3.35 * TERA,
        source="https://www.nvidia.com/en-us/data-center/h100/",
        gpu=Gpu(
            name="NVIDIA H100 80GB HBM3",
            compute_capability=9,
            num_cores=132,
            clock_ghz=1.98,
            l2_cache=50 * 2**20,
        ),
    ),
    "h200": Chip(
        platform="cuda",
        bfloat16=989 * TERA,
        float32=495 * TERA,
        memory=int(141 * GIGA),
        bandwidth=4.8 * TERA,
        source="https://www.nvidia.com/en-us/data-center/h200/",
        gpu=Gpu(
            name="NVIDIA H200 141GB HBM3e",
            compute_capability=9,
            num_cores=132,
            clock_ghz=1.98,
            l2_cache=50 * 2**20,
        ),
    ),
    "b200": Chip(
        platform="cuda",
        bfloat16=2250 * TERA,
        float32=1100 * TERA,
        memory=int(180 * GIGA),
        bandwidth=7.7 * TERA,
        source="https://www.nvidia.com/en-us/data-center/hgx/",
        gpu=Gpu(
            name="NVIDIA B200",
            compute_capability=10,
            num_cores=148,
            clock_ghz=1.965,
            l2_cache=132_644_864,
        ),
    ),
}
"""By the name of the chip. NVIDIA publishes peaks with sparsity; these are half of them."""

_EXAMPLES = "v5e:2x2, v5e:4x8, v6e:2x2, h100:4, h200:8, b200:8, h100:8:2, cpu:8"
# A shape, and the number of slices or hosts.
_SIZES = {
    "tpu": r"(\d+x\d+)(?::([1-9]\d?))?",
    "cuda": r"([1-8])(?::([1-9]\d?))?",
    "cpu": r"([1-9]\d{0,2})()",
}
# Without an accelerator, its plugin asks the metadata server of a cloud and waits for an answer.
_VARIABLES = {"tpu": {"TPU_SKIP_MDS_QUERY": "1"}, "cuda": {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}}
_PLUGINS = {
    "tpu": (("libtpu",), "aot-tpu"),
    "cuda": (("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13"), "aot-cuda"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """A number of chips in a shape, such as `v5e:2x2`, or several of these: `v5e:2x2:2`."""

    name: str
    platform: Literal["tpu", "cuda", "cpu"]
    shape: str  # of a TPU's slice, such as 2x2, or else the devices of a host
    count: int = 1  # slices, or hosts of GPUs
    chip: Chip | None  # None: a CPU, whose peaks are not known

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the topology of a name.

        Raises:
            ConfigError: it is not the name of one.
        """
        kind, _, size = text.partition(":")
        chip = CHIPS.get(kind)
        platform: Literal["tpu", "cuda", "cpu"] = "cpu" if chip is None else chip.platform
        match = re.fullmatch(_SIZES[platform], size)
        if match is None or (chip is None and kind != "cpu"):
            raise ConfigError(f"--for: expected a topology such as {_EXAMPLES}, got {text!r}")
        shape, count = match[1], int(match[2] or 1)
        return cls(name=text, platform=platform, shape=shape, count=count, chip=chip)

    def prepare(self) -> None:
        """Set the environment variables that the compilers need; call before jax starts.

        Nothing runs on an accelerator, so JAX need not look for one.

        Raises:
            ConfigError: the plugin of the platform is not installed.
        """
        os.environ["JAX_PLATFORMS"] = "cpu"
        for name, value in _VARIABLES.get(self.platform, {}).items():
            os.environ.setdefault(name, value)
        if self.platform == "cpu":
            os.environ["JAX_NUM_CPU_DEVICES"] = self.shape
            set_xla_flags()
            return
        modules, extra = _PLUGINS[self.platform]
        if not any(map(_is_installed, modules)):
            raise ConfigError(
                f"--for {self.name}: expected the compiler of {self.platform}, a plugin of JAX,"
                f" which is not installed: pip install 'sebulba[{extra}]'"
            )

    def hosts(self) -> list[list["jax.Device"]]:
        """Return the devices of each host of the topology.

        Raises:
            ConfigError: it does not exist.
        """
        import jax
        from jax.experimental import topologies

        if self.platform == "cpu":
            processors = jax.devices("cpu")
            if len(processors) < int(self.shape):
                raise ConfigError(
                    f"--for {self.name}: expected at most the {len(processors)} CPU devices of this"
                    " process (jax_num_cpu_devices)"
                )
            return [processors[: int(self.shape)]]
        name = self.name.removesuffix(f":{self.count}")
        options: dict[str, Any] = {"num_slices": self.count} if self.count > 1 else {}
        if self.chip is not None and self.chip.gpu is not None:
            name = f"1x{self.count}x{self.shape}"  # slices, hosts, and GPUs of a host
            target = self.chip.gpu.target_config(
                memory=self.chip.memory, bandwidth=self.chip.bandwidth
            )
            options = {"topology": name, "target_config": target}
        try:
            described = topologies.get_topology_desc(
                topology_name=name, platform=self.platform, **options
            )
        except Exception as error:  # the plugin's own
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise ConfigError(f"--for {self.name}: there is no such topology: {reason}") from error
        by_host: dict[int, list[Any]] = {}
        for device in cast("Sequence[Any]", described.devices):
            by_host.setdefault(device.process_index, []).append(device)
        return [by_host[host] for host in sorted(by_host)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False
