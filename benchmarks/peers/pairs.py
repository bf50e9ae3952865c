"""What is compared with what: versions, settings, and what cannot be made equal."""

import dataclasses

_ATARI = (
    "ours counts transitions that are learned from, the peer reset rows too; EnvPool 1.2 and 0.8"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """A peer's training, and the config of ours that does the same work."""

    name: str
    task: str
    install: tuple[str, ...]  # commands for the peer's environment and its checkout
    program: str  # file beside this one, run by the peer's Python
    script: str = ""  # file of the peer's checkout, the program's first argument
    flags: tuple[str, ...] = ()
    config: str  # ours, beside this file
    equal: str
    different: str
    warm_up_s: float = 5.0

    @property
    def needs_checkout(self) -> bool:
        """Whether the program runs a file of the peer's repository."""
        return bool(self.script)

    def arguments(self, checkout: str) -> list[str]:
        """Return the arguments of the program."""
        return [f"{checkout}/{self.script}", *self.flags] if self.script else list(self.flags)

    def describe(self) -> str:
        """Return how to repeat the comparison."""
        checkout = " --checkout DIR" if self.needs_checkout else ""
        return "\n".join(
            [
                f"{self.name}: {self.task}",
                *(f"    {command}" for command in self.install),
                f"    python -m benchmarks.peers {self.name} --python PEER_PYTHON{checkout}",
                f"  equal: {self.equal}",
                f"  not equal: {self.different}",
            ]
        )


_CLEANRL = (
    "git clone https://github.com/vwxyzjn/cleanrl && git -C cleanrl checkout fe8d8a03",
    "pip install torch gymnasium==0.29.1 gym==0.23.1 'envpool==0.8.4' 'numpy<2' tensorboard tyro"
    " 'setuptools<81'",
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
            config="gymnax_cartpole.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units, jax 0.10.2",
            different="gymnax 1.0 and 0.0.9; ours writes rows and checkpoints",
        ),
        Pair(
            name="stoix_mz",
            task="Gumbel MuZero on gymnax CartPole, 16 environments, everything in one program",
            install=(
                "git clone https://github.com/EdanToledo/Stoix && git -C Stoix checkout 8fff19c",
                "pip install jax==0.5.3 chex==0.1.89 distrax==0.1.5 optax==0.2.5 flax==0.10.6"
                " hydra-core==1.3.2 colorama gymnasium==1.2.3 tensorflow-probability==0.25.0"
                " flashbax==0.1.3 orbax-checkpoint==0.11.1 tensorstore==0.1.68 rich dm_env seaborn",
                "pip install --no-deps stoa-env==0.1.2 rlax==0.1.6 gymnax==0.0.9 mctx==0.0.71",
            ),
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
            different="ours steps EnvPool, the peer Gymnasium's Python environments",
        ),
        Pair(
            name="sb3_cartpole",
            task="PPO on CartPole, 32 environments",
            install=("pip install torch==2.13.0 stable-baselines3==2.9.2 gymnasium",),
            program="peer_sb3.py",
            config="ppo_cartpole.yaml",
            equal="128 steps, 4 epochs of 4 minibatches, two layers of 64 tanh units",
            different="ours steps EnvPool, the peer Gymnasium's Python environments",
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
    )
}
