from sebulba.config import ActorConfig, LearnerConfig
from sebulba.tools.report.groups import group_runs
from sebulba.tools.report.runs import read_runs
from sebulba_agents.config import ImpalaConfig, PPOConfig
from tests.tools.report.directories import make_run


def groups_of(tmp_path, *all_changes):
    paths = [make_run(tmp_path / str(i), **changes) for i, changes in enumerate(all_changes)]
    return group_runs(read_runs(paths))


def test_runs_that_differ_only_in_seed_and_directory_are_one_group(tmp_path):
    (group,) = groups_of(
        tmp_path, {"seed": 0}, {"seed": 4, "run_dir": "elsewhere"}, {"seed": 7, "resume": "latest"}
    )
    assert group.label == "impala Catch-v0"
    assert group.seeds == "seeds 0, 4, 7"
    assert group.environment == "jax Catch-v0"


def test_many_seeds_are_counted(tmp_path):
    (group,) = groups_of(tmp_path, *({"seed": seed} for seed in range(9)))
    assert group.seeds == "9 seeds"


def test_a_label_has_only_the_keys_that_differ(tmp_path):
    groups = groups_of(
        tmp_path,
        {"agent": ImpalaConfig(learning_rate=1e-3)},
        {"agent": ImpalaConfig(learning_rate=1e-4), "actor": ActorConfig(num_envs=32)},
        {"agent": PPOConfig()},
    )
    assert [group.label for group in groups] == [
        "impala actor.num_envs=16 agent.learning_rate=0.001",
        "impala actor.num_envs=32 agent.learning_rate=0.0001",
        "ppo",
    ]


def test_a_label_has_the_environment_where_it_differs(tmp_path):
    groups = groups_of(tmp_path, {"env_id": "Catch-v0"}, {"env_id": "Recall-v0"})
    assert [group.label for group in groups] == ["Catch-v0", "Recall-v0"]


def test_a_key_that_an_older_run_lacks_counts_as_null(tmp_path):
    older, newer = (make_run(tmp_path / name) for name in ("older", "newer"))
    text = (older / "config.yaml").read_text()
    assert "  policy_lag: null\n" in text
    (older / "config.yaml").write_text(text.replace("  policy_lag: null\n", ""))
    lagging = make_run(tmp_path / "lagging", learner=LearnerConfig(policy_lag=2))
    groups = group_runs(read_runs([older, newer, lagging]))
    assert [(group.label, len(group.runs)) for group in groups] == [
        ("impala Catch-v0 learner.policy_lag=null", 2),
        ("impala Catch-v0 learner.policy_lag=2", 1),
    ]
