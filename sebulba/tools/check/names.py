"""The names of all checks, and the short ones of the command line. Imports no jax."""

from collections.abc import Collection

from sebulba.errors import ConfigError, did_you_mean
from sebulba.process import program

PROTOCOL = "the agent fits the environment"
SPLITTING = "shard_actor_state splits by environment"
EXPLORATION = "each environment has its own exploration"
PIPELINE = "actors and learner run"
ALIGNMENT = "update_experience gets the environment's rows"
REPLAYED = "acting again gives the same actor states"
FORGETTING = "an episode begins without memory of the last"
REWARDS = "the loss credits a reward to the action before it"
TERMINATION = "the loss does not bootstrap at a termination"
TRUNCATION = "the loss bootstraps at a truncation"
WEIGHT = "the loss gives autoreset transitions weight 0"
MEMORY = "the loss begins episodes without memory"
CORRECTION = "the loss uses the stored behaviour policy"
ACTORS = "each actor draws its own random numbers"
ENVIRONMENTS = "each environment draws its own random numbers"
STEPS = "each step draws its own random numbers"
GREEDY = "greedy actions do not depend on the random key"
BEHAVIOUR = "stored log-probabilities are those of the sampled actions"
DONATION = "actor and learner states are donated"
COMPILATION = "every function is compiled once"
UPDATES = "updates descend, and reach every leaf in use"
PREFERENCE = "rewarded actions become more likely"
ENTROPY = "the entropy bonus raises the entropy"
VALUES = "values approach rewards, and count the next value once"
SYMMETRY = "rewards and penalties weigh the same"
ADVANTAGES = "standardised advantages ignore a constant reward"
LEGAL = "only legal actions are taken, and learned from"
PRIORITIES = "a TD error sets the priority of its own sequence"
EPOCHS = "each epoch learns once from every transition"
PADDING = "environments without valid rows change nothing"
DISCOUNT = "later rewards have the declared discount"
EQUALITY = "one and two learner devices learn the same"
REPLICAS = "every learner device has the same networks"

SHORT_NAMES = {
    "protocol": PROTOCOL,
    "splitting": SPLITTING,
    "exploration": EXPLORATION,
    "pipeline": PIPELINE,
    "rows": ALIGNMENT,
    "states": REPLAYED,
    "resets": FORGETTING,
    "rewards": REWARDS,
    "termination": TERMINATION,
    "masks": WEIGHT,
    "truncation": TRUNCATION,
    "memory": MEMORY,
    "correction": CORRECTION,
    "actor-keys": ACTORS,
    "env-keys": ENVIRONMENTS,
    "step-keys": STEPS,
    "greedy": GREEDY,
    "log-probs": BEHAVIOUR,
    "legal": LEGAL,
    "donation": DONATION,
    "compilation": COMPILATION,
    "updates": UPDATES,
    "preference": PREFERENCE,
    "entropy": ENTROPY,
    "values": VALUES,
    "symmetry": SYMMETRY,
    "advantages": ADVANTAGES,
    "priorities": PRIORITIES,
    "epochs": EPOCHS,
    "padding": PADDING,
    "discount": DISCOUNT,
    "devices": EQUALITY,
    "replicas": REPLICAS,
}
"""The checks in the order in which they run."""


def resolve(short_names: Collection[str]) -> frozenset[str]:
    """Return the names of some checks; of all checks if there are no short names.

    Raises:
        ConfigError: there is no check of a short name.
    """
    for name in short_names:
        if name not in SHORT_NAMES:
            raise ConfigError(
                f"--only: expected names of `{program('check')} --list`, got"
                f" {name!r}{did_you_mean(name, SHORT_NAMES)}"
            )
    return frozenset(SHORT_NAMES[name] for name in short_names or SHORT_NAMES)
