"""Suggest the key that was meant by one that does not exist."""

from collections.abc import Callable, Collection

from sebulba.config.schema import SECTIONS
from sebulba.errors import did_you_mean, nearest_names

OTHER_NAMES = {
    "id": "env env_id env_name gym_id task",
    "num_envs": "n_envs num_environments num_workers",
    "trajectory_length": "num_steps n_steps rollout_length unroll_length rollout_steps",
    "run_dir": "log_dir logdir output_dir save_dir save_path",
    "wandb_project": "wandb wandb_project_name use_wandb",
    "total_env_steps": "total_timesteps steps timesteps total_steps total_frames num_timesteps",
    "total_episodes": "num_episodes n_episodes max_episodes",
    "learning_rate": "lr alpha step_size",
    "discount": "gamma discount_factor",
    "lambda_": "lam gae_lambda gae_lam td_lambda vtrace_lambda trace_decay",
    "entropy_cost": "ent_coef ent_coeff entropy_coef entropy_coeff entropy_coefficient",
    "baseline_cost": "vf_coef vf_coeff value_coef value_coeff value_loss_coef critic_coef",
    "clip": "clip_eps clip_epsilon clip_coef clip_range clip_param ppo_clip",
    "value_clip": "clip_range_vf vf_clip_param clip_vloss",
    "normalize_advantages": "normalize_advantage norm_adv",
    "normalize_observations": "norm_obs obs_norm normalize_obs",
    "num_epochs": "epochs n_epochs update_epochs ppo_epochs",
    "num_minibatches": "n_minibatches num_mini_batches",
    "max_grad_norm": "grad_clip max_gradient_norm gradient_clip_norm",
    "hidden_sizes": "hidden_size hidden_dims hidden_layers layer_sizes net_arch",
    "adam_epsilon": "adam_eps eps opt_eps",
    "epsilon": "exploration_rate exploration_fraction eps_greedy",
    "batch_size": "minibatch_size mini_batch_size",
    "replay_capacity": "buffer_size buffer_capacity replay_size memory_size",
    "min_replay_rows": "learning_starts min_buffer_size min_replay_size warmup_steps",
    "replay_ratio": "train_frequency train_freq utd utd_ratio update_ratio",
    "target_period": "target_update_interval target_network_frequency target_update_period",
    "polyak": "tau target_tau soft_update_coef",
    "initial_temperature": "init_temperature ent_coef_init",
}
"""The names that other libraries have for our keys."""
_OUR_NAMES = {other: ours for ours, others in OTHER_NAMES.items() for other in others.split()}


def suggestion(
    key: str, known: Collection[str], *, written: Callable[[str], str] = lambda key: key
) -> str:
    """Return what to append to an error about an unknown key.

    Args:
        key: the unknown key, such as `agent.gamma`.
        known: the dotted keys that exist.
        written: returns a key as the user has to write it, such as its flag.
    """
    section, _, name = key.rpartition(".")
    for each in (name, _OUR_NAMES.get(name, name)):
        # `lambda` means `lambda_`.
        same = [key for key in known if key.rpartition(".")[2].strip("_") == each.strip("_")]
        if same:
            return f"; did you mean {' or '.join(map(written, same))}?"
    if section in SECTIONS:
        prefix = f"{section}."
        names = (other.removeprefix(prefix) for other in known if other.startswith(prefix))
        advice = f". An argument of the environment is {written(f'env.options.{name}')}"
        return did_you_mean(name, names) + (advice if section == "env" else "")
    first, *entry = key.split(".", 2)
    if first in SECTIONS and len(entry) == 2:
        owner = f"{first}.{entry[0]}"
        if owner in known:
            return f"; {written(owner)} is no mapping"
        nearest = nearest_names(owner, known)
        if nearest:
            return f"; did you mean {written(f'{nearest[0]}.{entry[1]}')}?"
    return did_you_mean(section or name, dict.fromkeys(other.partition(".")[0] for other in known))
