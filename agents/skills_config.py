"""The settings of the skills agent. Imports no jax."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkillsConfig:
    """Skills that can be told apart, on A2C (Eysenbach et al. 2018, arXiv 1802.06070)."""

    name: str = "skills"
    """Which agent."""
    num_skills: int = 4
    """Skills; each episode has one, drawn evenly."""
    reward_weight: float = 1.0
    """Of the environment's own reward, beside 1 of the skills'; 0: none of it, as the paper."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the tanh layers of policy, value and discriminator."""
    discount: float = 0.99
    """γ."""
    lambda_: float = 0.95
    """λ of the generalised advantages."""
    baseline_cost: float = 0.5
    """Weight of the value loss 0.5·(R − V)²."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    learning_rate: float = 2e-3
    """Of Adam, for policy and value."""
    discriminator_learning_rate: float = 2e-3
    """Of Adam, for the discriminator."""
    adam_epsilon: float = 1e-5
    """ε of Adam."""
    max_grad_norm: float | None = 0.5
    """Gradients of policy and value are clipped to this global norm; null: not."""
