"""Networks: an LSTM against NumPy, and that unrolling is stepping, resets included."""

import functools

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from sebulba.toolkit.cores import core_settings, join_past
from sebulba.toolkit.lstm import LSTMCore, LSTMState
from sebulba.toolkit.policy_heads import CategoricalHead
from sebulba.toolkit.settings import TorsoSettings
from sebulba.toolkit.torsos import DeepTorso, ObservationTorso
from sebulba_agents.networks import ActorCritic
from tests.compiled import jitted

LENGTH, NUM_ENVS, NUM_ACTIONS = 6, 3, 4
VECTOR, IMAGE = (5,), (2, 20, 20)
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def make_inputs(seed=0, shape=VECTOR, length=LENGTH, num_envs=NUM_ENVS):
    rng = np.random.default_rng(seed)
    rows = (length, num_envs)
    if len(shape) == 3:
        observation = rng.integers(0, 256, (*rows, *shape)).astype(np.uint8)
    else:
        observation = rng.normal(size=(*rows, *shape)).astype(np.float32)
    inputs = {
        "observation": observation,
        "reward": rng.normal(size=rows).astype(np.float32),
        "last_action": rng.integers(0, NUM_ACTIONS, rows).astype(np.int32),
        "is_first": rng.random(rows) < 0.3,
    }
    return inputs


@functools.cache
def make_network(torso="mlp", lstm_size=None, hidden_sizes=(8, 8)):
    has_torso_per_head = torso == "mlp" and lstm_size is None
    make_torso = functools.partial(ObservationTorso, TorsoSettings(torso, hidden_sizes))
    return ActorCritic(
        policy=CategoricalHead(NUM_ACTIONS),
        torso=make_torso,
        core=core_settings("lstm", lstm_size, {}),
        value_torso=make_torso if has_torso_per_head else None,
        shares_features=not has_torso_per_head,
    )


def init(network, inputs, seed=0):
    num_envs = inputs["reward"].shape[1]
    state = network.initial_state(num_envs)
    state = jax.tree.map(lambda x: x + 0.5, state)
    params = jitted(network.init)(jax.random.key(seed), state=state, **inputs)
    # The policy's initial gain would hide differences.
    params["params"]["policy"]["logits"]["kernel"] *= 100.0
    return params, state


def rows(inputs, selection):
    return {name: x[selection] for name, x in inputs.items()}


def lstm_in_numpy(params, inputs, is_first, hidden, cell):
    """An LSTM with forget gates, row by row and environment by environment."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    kernel, bias = params["Dense_0"]["kernel"], params["Dense_0"]["bias"]
    recurrent = params["recurrent_kernel"]
    size = hidden.shape[-1]
    outputs = np.zeros((*inputs.shape[:2], size))
    hidden, cell = hidden.astype(np.float64), cell.astype(np.float64)
    for t in range(inputs.shape[0]):
        for b in range(inputs.shape[1]):
            if is_first[t, b]:
                hidden[b] = cell[b] = 0.0
            gates = inputs[t, b] @ kernel + hidden[b] @ recurrent + bias
            admit, forget, emit, new = (gates[i * size : (i + 1) * size] for i in range(4))
            cell[b] = sigmoid(forget + 1.0) * cell[b] + sigmoid(admit) * np.tanh(new)
            outputs[t, b] = hidden[b] = sigmoid(emit) * np.tanh(cell[b])
    return outputs, hidden, cell


def test_lstm_equals_numpys_with_resets_and_forget_bias():
    size, num_features = 7, 5
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(LENGTH, NUM_ENVS, num_features)).astype(np.float32)
    is_first = np.zeros((LENGTH, NUM_ENVS), bool)
    is_first[0, 0] = is_first[3, 1] = is_first[5, 0] = True
    hidden, cell = rng.normal(size=(2, NUM_ENVS, size)).astype(np.float32)
    core, state = LSTMCore(size), LSTMState(hidden=jnp.asarray(hidden), cell=jnp.asarray(cell))
    arguments = (jnp.asarray(inputs), jnp.asarray(is_first), state)
    params = jax.jit(core.init)(jax.random.key(0), *arguments)
    outputs, final = jax.jit(core.apply)(params, *arguments)
    params = jax.tree.map(np.asarray, params["params"])
    expected = lstm_in_numpy(params, inputs, is_first, hidden, cell)
    for got, wanted in zip((outputs, final.hidden, final.cell), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


def test_lstm_recurrent_kernel_is_orthogonal_for_each_gate():
    core = LSTMCore(8)
    rows, is_first = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), bool)
    params = jax.jit(core.init)(jax.random.key(0), rows, is_first, core.initial_state(2))
    for gate in np.split(np.asarray(params["params"]["recurrent_kernel"]), 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-5)


@pytest.mark.parametrize(
    ("torso", "shape", "lstm_size"),
    [
        ("mlp", VECTOR, None),
        ("mlp", VECTOR, 6),
        ("shallow", IMAGE, 6),
        pytest.param("deep", (2, 8, 8), None, marks=pytest.mark.slow),
    ],
)
def test_unrolling_equals_stepping(torso, shape, lstm_size):
    inputs = make_inputs(shape=shape)
    network = make_network(torso, lstm_size)
    params, state = init(network, inputs)
    apply = jitted(network.apply)
    unrolled, final = apply(params, state=state, **inputs)
    assert unrolled.policy.logits.shape == (LENGTH, NUM_ENVS, NUM_ACTIONS)
    assert unrolled.values.shape == (LENGTH, NUM_ENVS)
    steps = []
    for t in range(LENGTH):
        step, state = apply(params, state=state, **rows(inputs, slice(t, t + 1)))
        steps.append(step)
    chex.assert_trees_all_close(
        jax.tree.map(lambda *x: np.concatenate(x), *steps), unrolled, **TOLERANCE
    )
    chex.assert_trees_all_close(state, final, **TOLERANCE)


@pytest.mark.parametrize("lstm_size", [None, 6])
def test_a_reset_separates_two_episodes_completely(lstm_size):
    border = 4
    inputs = make_inputs()
    inputs["is_first"][:] = (np.arange(LENGTH) == border)[:, None]
    network = make_network(lstm_size=lstm_size)
    params, state = init(network, inputs)
    apply = jitted(network.apply)
    whole, final = apply(params, state=state, **inputs)
    first, _ = apply(params, state=state, **rows(inputs, slice(border)))
    second = rows(inputs, slice(border, None))
    # What the second episode is told of the first must not matter.
    second["reward"], second["last_action"] = second["reward"].copy(), second["last_action"].copy()
    second["reward"][0] += 5.0
    second["last_action"][0] = (second["last_action"][0] + 1) % NUM_ACTIONS
    second, second_final = apply(params, state=network.initial_state(NUM_ENVS), **second)
    parts = jax.tree.map(lambda *x: np.concatenate(x), first, second)
    chex.assert_trees_all_close(parts, whole, **TOLERANCE)
    chex.assert_trees_all_close(second_final, final, **TOLERANCE)


def test_only_the_lstm_is_fed_the_past():
    inputs = make_inputs()
    inputs["is_first"] = np.zeros_like(inputs["is_first"])
    for lstm_size, is_fed in ((None, False), (6, True)):
        network = make_network(lstm_size=lstm_size)
        params, state = init(network, inputs)
        apply = jitted(network.apply)
        outputs, _ = apply(params, state=state, **inputs)
        for change in (
            {"reward": inputs["reward"] + 1.0},
            {"last_action": (inputs["last_action"] + 1) % NUM_ACTIONS},
        ):
            changed, _ = apply(params, state=state, **inputs | change)
            assert np.any(np.asarray(changed.policy.logits != outputs.policy.logits)) == is_fed


def test_join_past_is_features_reward_and_last_action_but_for_resets():
    joined = join_past(
        jnp.array([[[7.0]], [[8.0]]]),
        jnp.array([[0.5], [0.6]]),
        jnp.array([[[0.0, 1.0]], [[1.0, 0.0]]]),
        jnp.array([[False], [True]]),
    )
    np.testing.assert_allclose(joined, [[[7.0, 0.5, 0, 1]], [[8.0, 0, 0, 0]]])


def test_feed_forward_mlp_has_a_torso_for_each_head():
    inputs = make_inputs()
    network = make_network()
    params, state = init(network, inputs)

    def gradient(head):
        def total(params):
            outputs, _ = network.apply(params, state=state, **inputs)
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(getattr(outputs, head)))

        return jax.jit(jax.grad(total))(params)["params"]

    def touched(head):
        grads = gradient(head)
        return {name for name in grads if any(x.any() for x in jax.tree.leaves(grads[name]))}

    assert touched("policy") == {"torso", "policy"}
    assert touched("values") == {"value_torso", "value"}


def test_recurrent_mlp_shares_its_torso():
    inputs = make_inputs()
    params = jax.eval_shape(lambda: init(make_network(lstm_size=6), inputs)[0])
    assert params["params"].keys() == {"torso", "core", "policy", "value"}


def test_dense_layers_start_orthogonal_with_the_gain_of_their_role():
    network = make_network(hidden_sizes=(16, 16))
    inputs = make_inputs()
    params = jitted(network.init)(jax.random.key(0), state=(), **inputs)["params"]
    kernels = {
        2**0.5: params["torso"]["mlp"]["Dense_1"]["kernel"],
        0.01: params["policy"]["logits"]["kernel"],
        1.0: params["value"]["kernel"],
    }
    for gain, kernel in kernels.items():
        singular_values = np.linalg.svd(kernel, compute_uv=False)
        np.testing.assert_allclose(singular_values, gain, rtol=1e-4)


@pytest.mark.parametrize(
    ("torso", "num_flat"), [("shallow", 9 * 9 * 32), ("dqn", 7 * 7 * 64), ("deep", 11 * 11 * 32)]
)
def test_atari_torsos_have_the_papers_sizes(torso, num_flat):
    network = make_network(torso)
    inputs = make_inputs(shape=(4, 84, 84), length=1, num_envs=1)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), state=(), **inputs))
    torso_params = params["params"]["torso"][torso]
    width = 512 if torso == "dqn" else 256
    assert torso_params["Dense_0"]["kernel"].shape == (num_flat, width)
    first = {"shallow": (8, 8, 4, 16), "dqn": (8, 8, 4, 32), "deep": (3, 3, 4, 16)}
    assert torso_params["Conv_0"]["kernel"].shape == first[torso]
    num_convolutions = sum(name.startswith("Conv") for name in torso_params)
    assert num_convolutions == {"shallow": 2, "dqn": 3, "deep": 15}[torso]


def test_images_are_channels_first_and_divided_by_255():
    image = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 12)).astype(np.uint8)
    torso = DeepTorso()
    params = jax.jit(torso.init)(jax.random.key(0), jnp.asarray(image))
    apply = jax.jit(torso.apply)
    features = apply(params, jnp.asarray(image))
    scaled = apply(params, jnp.asarray(image / np.float32(255)))
    np.testing.assert_allclose(features, scaled, rtol=1e-5, atol=1e-6)
    # 3 channels of 8×12, of which three poolings leave 1×2.
    assert params["params"]["Conv_0"]["kernel"].shape == (3, 3, 3, 16)
    assert params["params"]["Dense_0"]["kernel"].shape == (1 * 2 * 32, 256)


def test_mlp_takes_any_observation():
    rng = np.random.default_rng(0)
    parts = {
        "image": rng.integers(0, 256, (LENGTH, NUM_ENVS, 2, 3)).astype(np.uint8),
        "number": rng.integers(0, 9, (LENGTH, NUM_ENVS)).astype(np.int32),
        "vector": rng.normal(size=(LENGTH, NUM_ENVS, 4)).astype(np.float32),
    }
    flat = np.concatenate(
        [
            parts["image"].reshape(LENGTH, NUM_ENVS, 6) / np.float32(255),
            parts["number"][..., None].astype(np.float32),
            parts["vector"],
        ],
        axis=-1,
    )
    network = make_network()
    inputs = make_inputs() | {"observation": flat}
    params, state = init(network, inputs)
    apply = jitted(network.apply)
    expected, _ = apply(params, state=state, **inputs)
    inputs["observation"] = parts
    outputs, _ = apply(params, state=state, **inputs)
    chex.assert_trees_all_close(outputs, expected, **TOLERANCE)


def test_vectors_next_to_an_image_go_through_a_separate_mlp():
    inputs = make_inputs(shape=IMAGE, length=1)
    parts = {"camera": inputs["observation"], "joints": np.ones((1, NUM_ENVS, 3), np.float32)}
    network = make_network("shallow", lstm_size=4)
    params, state = init(network, inputs | {"observation": parts})
    apply = jitted(network.apply)
    outputs, _ = apply(params, state=state, **inputs | {"observation": parts})
    assert params["params"]["core"]["Dense_0"]["kernel"].shape[0] == 256 + 8 + 1 + NUM_ACTIONS
    for changed in ({"joints": parts["joints"] + 1.0}, {"camera": 255 - parts["camera"]}):
        other, _ = apply(params, state=state, **inputs | {"observation": parts | changed})
        assert (other.values != outputs.values).any()


@pytest.mark.parametrize("torso", ["shallow", "deep"])
def test_no_convolution_is_inside_the_scan_over_time(torso):
    network = make_network(torso, lstm_size=4)
    inputs = make_inputs(shape=IMAGE)
    state = network.initial_state(NUM_ENVS)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), state=state, **inputs))

    def loss(params):
        outputs, _ = network.apply(params, state=state, **inputs)
        return jnp.sum(outputs.policy.logits) + jnp.sum(outputs.values)

    jaxpr = jax.make_jaxpr(jax.grad(loss))(params)
    scans = [equation for equation in equations(jaxpr.jaxpr) if equation.primitive.name == "scan"]
    assert scans and "conv_general_dilated" in str(jaxpr)
    assert not any("conv_general_dilated" in str(scan) for scan in scans)


def equations(jaxpr):
    """Yields the equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)
