"""The question whether an agent keeps the players of an environment apart, and those that are out.

The probe has a stream for each player, but no teams. So here the agent is built for the number of
players of the config's environment, and acts and learns on the probe's observations and rewards
with the ends of teams: players begin together, leave one after another, and wait for the last.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agent import Agent, declared
from sebulba.check.capture import as_data
from sebulba.check.evidence import Evidence
from sebulba.check.mixing import APART, MIN_TIMES_MORE, answer_of_mixture
from sebulba.check.perturbation import Perturbation, has_own_values, is_done
from sebulba.check.policy import differs, unroll
from sebulba.check.question import Needs, Question
from sebulba.check.recording import RecordedTrajectory, Recording
from sebulba.check.result import Answer, as_numpy, failed, passed, skipped, unclear
from sebulba.check.sensitivity import LossSensitivity
from sebulba.check.subject import Subject
from sebulba.pytree import leaf_name
from sebulba.types import EnvStep, PyTree

_LENGTHS = (5, 7, 9)  # of the episodes of a team, in steps
_OF_PLAYER = ("observation", "action", "extras")
_OF_NOBODY = ("action", "extras")  # which the other players do not see either


def players(evidence: Evidence) -> Answer:
    """Change the rows of some players, and those of players that are out."""
    subject = evidence.subject
    if subject.num_players == 1:
        return skipped("the environment has one player")
    teams = _with_teams(subject)
    recording = _acted_in_teams(teams, evidence.recording)
    mixes = declared(teams.agent, Agent, "mixes_players")
    loss = LossSensitivity(teams, recording, **APART)
    if not mixes and (failure := _leak_in_acting(teams, loss)) is not None:
        return failed(failure)
    if not mixes and (answer := _leak_in_learning(teams, loss)) is not None:
        return answer
    seen = []
    for field in _OF_NOBODY if mixes else _OF_PLAYER:
        change = Perturbation(field=field, rows=_is_out)
        entries = list(change.entries(loss.items))
        if not entries or not loss.uses(field):
            continue
        changed = change.apply(loss.items)
        if loss.effect(changed) > loss.rounding:
            if loss.effect(changed, attempt=1) <= loss.rounding:
                return unclear(f"the {field} of players that are out matters to some networks only")
            item, row, env = (getattr(entries[0], name) for name in ("item", "row", "env"))
            return failed(
                f"expected the loss to ignore the {field} of a player that is out"
                f" ({loss.items[item].place}, row {row}, env {env // subject.num_players}, player"
                f" {env % subject.num_players}); changing it in all such rows gave"
                f" {loss.describe(changed)}",
                "a mask of resets in place of Trajectory.valid, which leaves out all rows after an"
                " end",
            )
        seen.append(field)
    if not seen:
        return unclear("the loss uses nothing of which rows of waiting players have another value")
    ignored = f"the loss ignores {', '.join(seen)} of players that are out"
    if mixes:
        return passed(f"{ignored}; the agent says that it mixes players")
    return passed(f"{ignored}; actions of players stay, and effects on gradients add up")


def _with_teams(subject: Subject) -> Subject:
    """Return the agent built for players, who are environments of the subject."""
    spec = subject.run_spec
    run_spec = dataclasses.replace(
        spec,
        num_envs=spec.num_envs // subject.num_players,
        environment=dataclasses.replace(spec.environment, num_players=subject.num_players),
    )
    agent, _ = dataclasses.replace(subject, run_spec=run_spec).agent_on(spec.num_learner_devices)
    networks = agent.actor_networks(agent.init_networks(jax.random.key(subject.config.seed)))
    states = [
        agent.init_actor_state(networks, spec.num_streams, jax.random.key(actor_id), actor_id)
        for actor_id in range(spec.num_actors)
    ]
    return dataclasses.replace(subject, run_spec=run_spec, agent=agent, start_states=tuple(states))


def _acted_in_teams(teams: Subject, recording: Recording) -> Recording:
    """Return what the agent does on the recorded rows, if these end as those of teams."""
    agent = teams.agent
    networks = agent.init_networks(jax.random.key(teams.config.seed))
    acting = agent.actor_networks(networks)
    act = jax.jit(lambda state, rows: unroll(agent, acting, state, rows))
    states, items = list(teams.start_states), []
    for item in recording.trajectories:
        rows = _in_teams(item, teams)
        before = states[item.actor_id]
        acted = jax.tree.map(lambda leaf: jnp.asarray(leaf[:-1]), rows)
        action, extras, after = act(before, acted)
        states[item.actor_id] = after
        acted_again = item.with_trajectory(
            env_steps=rows, action=np.asarray(action), extras=as_numpy(extras)
        )
        items.append(
            dataclasses.replace(
                acted_again,
                initial_state=as_numpy(as_data(before)),
                final_state=as_numpy(as_data(after)),
            )
        )
    found = as_numpy(networks)
    return dataclasses.replace(
        recording, trajectories=tuple(items), networks=found, first_networks=found
    )


def _in_teams(item: RecordedTrajectory, teams: Subject) -> EnvStep:
    """Return the rows of a trajectory with the ends of teams."""
    rows, num_players = item.trajectory.env_steps, teams.num_players
    num_rows, num_streams = rows.reward.shape
    length = num_rows - 1
    period = sum(_LENGTHS) + len(_LENGTHS)
    number = (item.cycle * length + np.arange(num_rows))[:, None] + 3 * (
        np.arange(num_streams) // num_players
    )
    starts = np.cumsum([0, *(each + 1 for each in _LENGTHS)])
    episode = np.searchsorted(starts, number % period, side="right") - 1
    step = number % period - starts[episode]
    # The last player leaves at the end, the others each a step or two before the next one.
    player = np.arange(num_streams) % num_players
    leaves = np.maximum(np.array(_LENGTHS)[episode] - (num_players - 1 - player), 1)
    done = step >= leaves
    is_waiting = step > leaves
    is_truncated = (player + episode) % 2 == 0
    is_first = step == 0

    def frozen(leaf: np.ndarray) -> np.ndarray:
        """Return a leaf whose rows are repeated while a player waits."""
        leaf = leaf.copy()
        for row in range(1, num_rows):
            leaf[row] = np.where(
                is_waiting[row].reshape(-1, *(1,) * (leaf.ndim - 2)), leaf[row - 1], leaf[row]
            )
        return leaf

    return dataclasses.replace(
        rows,
        observation=jax.tree.map(frozen, rows.observation),
        action_mask=jax.tree.map(frozen, rows.action_mask),
        reward=np.where(is_waiting | is_first, np.float32(0.0), rows.reward + np.float32(0.1)),
        terminated=done & ~is_truncated,
        truncated=done & is_truncated,
        is_first=is_first,
    )


def _is_out(env_steps: EnvStep) -> np.ndarray:
    """Select rows that repeat a player's final one."""
    done = is_done(env_steps)
    return done & np.concatenate([np.zeros_like(done[:1]), done[:-1]])


def _leak_in_acting(teams: Subject, loss: LossSensitivity) -> str | None:
    """Change what the first player of each environment sees, and compare the others' actions."""
    agent, item = teams.agent, loss.items[0]
    # With noise: the policy of new networks is nearly the same in all rows.
    networks = agent.actor_networks(loss.networks_of(1))
    state = teams.start_states[0]

    @jax.jit
    def act(rows: EnvStep) -> dict[str, PyTree]:
        action, extras, _ = unroll(agent, networks, state, rows)
        # Exploration may hide the policy, and there may be no extras.
        greedy, *_ = unroll(agent, networks, state, rows, greedy=True)
        return {"action": action, "extras": extras, "greedy action": greedy}

    is_changed = np.arange(item.trajectory.valid.shape[1]) % teams.num_players == 0
    other = item
    for field in ("observation", "reward"):
        change = Perturbation(
            field=field, rows=lambda rows: np.broadcast_to(is_changed, rows.reward.shape)
        )
        other = change.apply([other])[0]
    acted, others = (as_numpy(act(each.acted_rows)) for each in (item, other))
    pairs = zip(jax.tree_util.tree_leaves_with_path(acted), jax.tree.leaves(others), strict=True)
    for (path, before), after in pairs:
        if differs([before[:, ~is_changed]], [after[:, ~is_changed]]):
            return (
                f"act: {leaf_name(path)} ({item.place}): expected that of a player to stay when"
                " another player of its environment sees something else, got another one"
            )
    return None


def _leak_in_learning(teams: Subject, loss: LossSensitivity) -> Answer | None:
    """Change the rows of the first player of each environment, those of the second, and both.

    A term of the loss that is about one player sees one of the changes only, so what both change in
    the gradients is the sum of what each changes. Compared with players of different environments.
    """
    number = np.arange(teams.run_spec.num_streams)
    player, env = number % teams.num_players, number // teams.num_players

    def changed(items, columns: np.ndarray, *fields: str):
        for field in fields:
            change = Perturbation(field=field, rows=lambda rows: has_own_values(rows) & columns)
            items = change.apply(items)
        return items

    def mixture(attempt: int, *, of_environments: bool) -> float:
        first = (player == 0) & (env % 2 == 0)
        second = (player == 1) & (env % 2 == of_environments)
        one = changed(loss.items, first, "observation")
        fields = ("reward", "observation")
        other = changed(loss.items, second, *fields)
        return loss.mixture(one, other, changed(one, second, *fields), attempt=attempt)

    answer = answer_of_mixture(
        loss,
        lambda attempt: mixture(attempt, of_environments=False),
        between=lambda: mixture(0, of_environments=True) if env[-1] else 0.0,
        expected=(
            f"trajectory.env_steps ({loss.items[-1].place}, all rows): expected the observations of"
            " one player and the rows of another one of its environment"
        ),
        elsewhere="players of two environments",
    )
    return None if answer.status == "pass" else answer


PLAYERS = Question(
    name="players",
    ask=players,
    property="players are kept apart, and those that are out teach nothing",
    needs=Needs.GRADIENT,
    perturbs=(
        "what one player of each environment sees and receives; then rows of players that wait for"
        " the others"
    ),
    proof=(
        "the agent is built for the environment's players, whose rows end as those of teams; fields"
        " count that the loss uses in other rows"
    ),
    expects=(
        "actions and extras of other players to stay, effects on gradients to add up, and none of"
        " players that are out; `mixes_players` allows the first two"
    ),
    bound=(
        f"1e-4 of the greatest number in acting; the loss's rounding (see `rewards`), and"
        f" {MIN_TIMES_MORE:g} times the mixture between environments"
    ),
    likely_cause=(
        "rows of an environment are added, compared or attended to. Set mixes_players if that is"
        " meant"
    ),
)
