"""What is compared with what: versions, settings, and what cannot be made equal."""

import dataclasses

from sebulba.devices.xla_flags import FLAGS

# Of a peer's environment: a path of ours would come before the peer's own packages.
PEER_VARIABLES = {"PYTHONPATH": ""}

_ATARI = (
    "ours counts transitions that are learned from, the peer reset rows too; EnvPool 1.2 and 0.8"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A peer's training or acting, and the config of ours that does the same work."""

    name: str
    task: str
    install: tuple[str, ...]  # commands for the peer's environment and its checkout
    program: str  # file beside this one, run by the peer's Python
    script: str = ""  # file of the peer's checkout, the program's first argument
    flags: tuple[str, ...] = ()
    start_flags: tuple[str, ...] | None = None  # for a count after the first update; None: as above
    own: str = "ours"  # module beside this file, run by this Python
    config: str  # ours, beside this file
    own_flags: tuple[str, ...] = ()
    xla_flags: str = ""  # XLA_FLAGS of a row of its own for the peer; empty: no such row
    equal: str
    different: str
    warm_up_s: float = 5.0
    prints_returns: bool = False  # whether `benchmarks.peers.returns` can compare them

    @property
    def needs_checkout(self) -> bool:
        """Whether the program runs a file of the peer's repository."""
        return bool(self.script)

    def arguments(self, checkout: str, *, is_start: bool = False) -> list[str]:
        """Return the arguments of the program."""
        flags = self.start_flags if is_start and self.start_flags is not None else self.flags
        return [f"{checkout}/{self.script}", *flags] if self.script else list(flags)

    def describe(self) -> str:
        """Return how to repeat the comparison."""
        checkout = " --checkout DIR" if self.needs_checkout else ""
        also = [f"  also with: XLA_FLAGS={self.xla_flags}"] if self.xla_flags else []
        return "\n".join(
            [
                f"{self.name}: {self.task}",
                *(f"    {command}" for command in self.install),
                f"    python -m benchmarks.peers {self.name} --python PEER_PYTHON{checkout}",
                f"  equal: {self.equal}",
                f"  not equal: {self.different}",
                *also,
            ]
        )


# What `import sebulba` sets on a CPU with the jaxlib that the peers below run on.
_OUR_XLA_FLAGS = str(next(flag for flag in FLAGS if flag.suits((0, 10, 2))))

_ONE_CALL = (
    "gymnax 1.0 and 0.0.9; ours writes rows and checkpoints; each call of the peer makes new"
    " networks and environments, which it then trains for so many updates"
)

_PYTHON_ENVIRONMENTS = (
    "ours steps EnvPool's environments, in C++, the peer Gymnasium's, in Python; the peer learns"
    " with PyTorch"
)

_CLEANRL = (
    "git clone https://github.com/vwxyzjn/cleanrl && git -C cleanrl checkout fe8d8a03",
    "pip install torch gymnasium==0.29.1 gym==0.23.1 'envpool==0.8.4' 'numpy<2' tensorboard tyro"
    " 'setuptools<81'",
)

_STOIX = (
    "git clone https://github.com/EdanToledo/Stoix && git -C Stoix checkout 8fff19c",
    "pip install jax==0.5.3 chex==0.1.89 distrax==0.1.5 optax==0.2.5 flax==0.10.6"
    " hydra-core==1.3.2 colorama gymnasium==1.2.3 tensorflow-probability==0.25.0"
    " flashbax==0.1.3 orbax-checkpoint==0.11.1 tensorstore==0.1.68 rich dm_env seaborn"
    " envpool==0.8.4 'numpy<2'",
    "pip install --no-deps stoa-env==0.1.2 rlax==0.1.6 gymnax==0.0.9 mctx==0.0.71",
)


def _purejaxql(name: str, *, task: str, script: str, updates: int, config: str, equal: str) -> Pair:
    return Pair(
        name=name,
        task=f"{task}, everything in one program",
        install=(
            "git clone https://github.com/mttga/purejaxql",
            "git -C purejaxql checkout 47af6d7",
            "pip install jax==0.10.2 flax optax distrax chex six 'gymnasium<1.4' gymnax==0.0.9",
        ),
        program="peer_purejaxql.py",
        script=f"purejaxql/{script}",
        flags=(str(updates),),  # of a call
        start_flags=("1",),
        config=config,
        xla_flags=_OUR_XLA_FLAGS,
        equal=f"{equal}, jax 0.10.2",
        different=f"{_ONE_CALL}; without the flag, the peer uses reductions that jaxlib 0.10.2 can"
        " compute wrongly",
    )


def _earl_acting(name: str, cycle: str) -> Pair:
    return Pair(
        name=name,
        task=f"acting alone on CartPole, 2 threads of 16 environments, ours {cycle}",
        install=(
            "git clone https://github.com/garymm/earl && git -C earl checkout d785965",
            "pip install jax==0.5.0 jaxlib==0.5.0 equinox==0.13.8 gymnax==0.0.9 flax==0.10.4"
            " optax==0.2.5 distrax==0.1.5 chex==0.1.90 orbax-checkpoint==0.11.1"
            " tensorstore==0.1.68 gymnasium==1.2.3 jax-loop-utils==0.0.14 tqdm envpool==0.8.4"
            " 'numpy<2'",
        ),
        program="peer_earl.py",
        script="earl/environment_loop/gymnasium_loop.py",
        own="ours_acting",
        config="act_cartpole.yaml",
        own_flags=("--actor.cycle", cycle),
        equal="100 steps a cycle, five layers of 200 tanh units, one EnvPool thread per actor",
        different="ours counts transitions, the peer reset rows too; the peer queues trajectories"
        " and writes no metrics; EnvPool 1.2 and 0.8, jax 0.10 and 0.5",
    )


def _jaxmarl(
    name: str,
    *,
    task: str,
    script: str,
    flags: tuple[str, ...],
    config: str,
    own_flags: tuple[str, ...] = (),
    equal: str,
    different: str,
) -> Pair:
    return Pair(
        name=name,
        task=f"{task}, everything in one program",
        install=(
            "git clone https://github.com/FLAIROx/JaxMARL && git -C JaxMARL checkout c793d09",
            "pip install jax==0.10.2 flax optax distrax chex matplotlib pyyaml jaxmarl==0.2.0",
        ),
        program="peer_jaxmarl.py",
        script=f"baselines/IPPO/{script}",
        flags=(*flags, "ENV_STEPS=90000000"),
        config=f"../../configs/{config}",
        own_flags=("--env.options.time_limit", "terminates", *own_flags),
        xla_flags=_OUR_XLA_FLAGS,
        equal=f"{equal}, 4 epochs of 4 minibatches, limits of time that terminate, jax 0.10.2",
        different=f"ours writes rows and checkpoints{different}",
        warm_up_s=8.0,
        prints_returns=True,
    )


def _rllib(name: str, actors: str, *own_flags: str) -> Pair:
    return Pair(
        name=name,
        task=f"IMPALA on CartPole, 2 env runners of 16 environments, ours with 2 {actors}",
        install=("pip install 'ray[rllib]==2.60.0' torch==2.14.1",),
        program="peer_rllib.py",
        config="../../configs/impala_cartpole.yaml",
        own_flags=("--run.stop-at-return", "null", *own_flags),
        equal="20 steps, a trajectory of 16 environments an update, two layers of 64 units that"
        " policy and value share, Adam with 0.001",
        different="ours steps EnvPool, the peer Gymnasium's Python environments; ours counts env"
        " steps that are learned from, the peer those that its queues hold too; their networks are"
        " older by what these hold, ours by 3 updates; PyTorch",
        warm_up_s=5.0,
    )


PAIRS = {
    pair.name: pair
    for pair in (
        Pair(
            name="purejaxrl",
            task="PPO on gymnax CartPole, 16 environments, everything in one program",
            install=(
                "git clone https://github.com/luchris429/purejaxrl",
                "git -C purejaxrl checkout 31756b1",
                "pip install jax==0.10.2 flax optax distrax chex six 'gymnasium<1.4' gymnax==0.0.9",
            ),
            program="peer_purejaxrl.py",
            script="purejaxrl/ppo.py",
            flags=("200",),  # updates of a call
            start_flags=("1",),
            config="gymnax_cartpole.yaml",
            xla_flags=_OUR_XLA_FLAGS,
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units, jax 0.10.2",
            different=_ONE_CALL,
        ),
        Pair(
            name="rejax",
            task="PPO on gymnax CartPole, 16 environments, everything in one program",
            install=(
                "pip install jax==0.10.2 flax optax distrax chex six 'gymnasium<1.4' gymnax==0.0.9",
                "pip install --no-deps rejax==0.1.3",
            ),
            program="peer_rejax.py",
            flags=("200",),  # updates of a call
            start_flags=("1",),
            config="gymnax_cartpole.yaml",
            xla_flags=_OUR_XLA_FLAGS,
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units, jax 0.10.2",
            different=f"{_ONE_CALL}; the peer clips each element of a gradient, ours the norm of"
            " all, and its learning rate stays the same, ours falls",
        ),
        _purejaxql(
            "purejaxql",
            task="PQN on gymnax CartPole with PureJaxQL's defaults, 32 environments",
            script="pqn_gymnax.py",
            updates=50,
            config="pqn_cartpole.yaml",
            equal="64 steps, 4 epochs of 16 minibatches, two layers of 256 units with LayerNorm",
        ),
        _purejaxql(
            "purejaxql_minatar",
            task="PQN on gymnax's MinAtar Breakout with PureJaxQL's defaults, 128 environments",
            script="pqn_minatar.py",
            updates=10,
            config="../../configs/pqn_minatar_breakout.yaml",
            equal="32 steps, 2 epochs of 32 minibatches, 16 filters of 3×3, a layer of 128 units,"
            " LayerNorm",
        ),
        Pair(
            name="stoix_anakin",
            task="PPO on gymnax CartPole with Stoix's defaults, 1,024 environments, everything in"
            " one program",
            install=_STOIX,
            program="peer_stoix_anakin.py",
            script="stoix/systems/ppo/anakin/ff_ppo.py",
            config="gymnax_cartpole_wide.yaml",
            equal="128 steps, 4 epochs of 16 minibatches, two layers of 256 ReLU units each for"
            " policy and value",
            different="gymnax 1.0 and 0.0.9, jax 0.10 and 0.5; ours writes rows and checkpoints,"
            " the peer neither evaluates nor logs; it clips two gradients, not one; its minibatches"
            " are from a full permutation, ours of more than 65,536 transitions from a cheaper"
            " order (sebulba.toolkit.shuffling.shifted_order)",
            warm_up_s=8.0,
        ),
        Pair(
            name="stoix_mz",
            task="Gumbel MuZero on gymnax CartPole, 16 environments, everything in one program",
            install=_STOIX,
            program="peer_stoix_mz.py",
            script="stoix/systems/search/ff_mz.py",
            config="gymnax_cartpole_search.yaml",
            equal="networks of 64 units, 16 simulations, 16 steps, then 8 updates of 64 sequences"
            " with 5 actions",
            different="gymnax 1.0 and 0.0.9, jax 0.10 and 0.5; ours writes rows and checkpoints,"
            " the peer neither evaluates nor logs",
        ),
        Pair(
            name="cleanrl_cartpole",
            task="PPO on CartPole, 32 environments",
            install=_CLEANRL,
            program="peer_cleanrl.py",
            script="cleanrl/ppo.py",
            flags=(
                *("--env-id", "CartPole-v1", "--num-envs", "32", "--num-steps", "128"),
                *("--num-minibatches", "4", "--update-epochs", "4", "--no-cuda"),
                *("--total-timesteps", "2000000000"),
            ),
            config="ppo_cartpole.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units",
            different=_PYTHON_ENVIRONMENTS,
        ),
        Pair(
            name="sb3_cartpole",
            task="PPO on CartPole, 32 environments",
            install=("pip install torch==2.13.0 stable-baselines3==2.9.2 gymnasium",),
            program="peer_sb3.py",
            config="ppo_cartpole.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units",
            different=f"{_PYTHON_ENVIRONMENTS}, and its learning rate stays the same, ours falls",
        ),
        Pair(
            name="sample_factory",
            task="asynchronous PPO on CartPole, 2 workers of 16 environments",
            install=(
                "pip install torch==2.14.1 sample-factory==2.1.1 gymnasium==0.29.1 'setuptools<81'",
            ),
            program="peer_sample_factory.py",
            config="ppo_cartpole.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units",
            different=f"{_PYTHON_ENVIRONMENTS}; the peer's networks are older than ours by what its"
            " queues hold",
            warm_up_s=8.0,
        ),
        Pair(
            name="cleanrl_pong",
            task="PPO on Pong with the network of DQN, 8 environments",
            install=_CLEANRL,
            program="peer_cleanrl.py",
            script="cleanrl/ppo_atari_envpool.py",
            flags=(
                *("--env-id", "Pong-v5", "--num-envs", "8", "--num-steps", "128"),
                *("--num-minibatches", "4", "--update-epochs", "4", "--no-cuda"),
                *("--total-timesteps", "2000000000"),
            ),
            config="ppo_pong.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, EnvPool's Pong-v5, 84×84×4",
            different=_ATARI,
        ),
        Pair(
            name="stoix_ppo",
            task="PPO on CartPole with Stoix's defaults, 2 threads of 16 environments",
            install=_STOIX,
            program="peer_stoix_ppo.py",
            script="stoix/systems/ppo/sebulba/ff_ppo.py",
            config="ppo_cartpole_relu.yaml",
            equal="128 steps, 4 epochs of 16 minibatches, policy lag 1, two layers of 256 ReLU"
            " units each for policy and value",
            different="EnvPool 1.2 and 0.8, jax 0.10 and 0.5; ours writes rows and checkpoints; the"
            " peer standardises advantages once per batch and clips two gradients, not one",
        ),
        _jaxmarl(
            "jaxmarl_spread",
            task="IPPO on JaxMARL's simple_spread, 3 players, 16 environments",
            script="ippo_ff_mpe.py",
            flags=(),
            config="ppo_simple_spread.yaml",
            own_flags=("--agent.learning-rate", "{schedule: linear, start: 2.5e-4, end: 0}"),
            equal="128 steps, two layers of 64 tanh units each for policy and value, all settings"
            " of JaxMARL's",
            different="",
        ),
        _jaxmarl(
            "jaxmarl_smax",
            task="IPPO with a GRU on JaxMARL's SMAX 3m, 3 players, 32 environments",
            script="ippo_rnn_smax.py",
            flags=("MAP_NAME=3m", "NUM_ENVS=32", "FC_DIM_SIZE=64", "GRU_HIDDEN_DIM=64"),
            config="ppo_smax.yaml",
            equal="128 steps, a layer of 64 ReLU units and a GRU of 64, all other settings of"
            " JaxMARL's",
            different="; the peer has a layer of 64 after the GRU for each head, ours none; the GRU"
            " of ours also sees the last action and reward; the peer empties the memory of dead"
            " players",
        ),
        _rllib("rllib_impala", "threads"),
        _rllib(
            "rllib_impala_remote",
            "remote actors",
            *("--actor.threads-per-device", "0", "--actor.remote", "2"),
        ),
        _earl_acting("earl_acting", "fused"),
        _earl_acting("earl_acting_stepped", "stepped"),
    )
}
