"""The Sebulba architecture: actors, a learner, and the two deques between them.

      env.step              one actor thread for each actor, on its actor device
         │ EnvStep [B]      ┌──────────────────────────────────────────────────┐
         └────────────────▶ │ collector: Point ▶ T steps ▶ Collected           │
                            │ actor: ─▶ Delivery(Unroll, UnrollInfo, Point)    │
                            └───────┬──────────────────────────────────▲───────┘
      trajectory deque, bounded     │ put                         take │  staging deque of the
      per actor; nothing is lost    ▼                                  │  actor device, versioned
                            ┌──────────────────────────────────────────┴───────┐
      one learner thread    │ take ─▶ update on the learner devices ─▶ publish │
                            │ count ─▶ report the cycle to the observers       │
                            └──────────────────────────────────────────────────┘

Read `sebulba.types` and `sebulba.agent` first: what a row of a trajectory holds, and what an agent
defines. Then read these files in this order. A file imports only files above it, and nothing of the
rooms that observe the ring (run directories, checkpoints, consoles, hosts, evaluation):

    records          what goes round
    schedule         which trajectory comes next, and how old its networks are
    ledger           double-entry accounts of every env step
    clocks           where the time went
    run_end          why a run ends
    deques           trajectories to the learner, networks to the actors
    threads          those of a run, which start and end together
    episodes         episode statistics and users' reducers, inside jit
    act_cycle        one act cycle: what fused and stepped share
    whole_episodes   one episode for each environment
    stepped_cycle    one jitted call for each step
    fused_cycle      one jitted loop with the environment inside it
    act_functions    the jitted functions of a device, and the cycle that suits an environment
    collectors       who acts: a port
    local_collector  acts in environments of this process
    actor            its point; asks its collector, again after a fault, and places the unroll
    update           a learner cycle on one device; what is not finite is discarded
    one_program      learner cycles with their act cycles as one jitted function
    learner          maps updates over the learner devices
    programs         a run's agent and jitted functions, built in one place
    progress         what was learned, how fast, and whether the goal is reached
    ring             act, take, learn, report
    make             a ring from a config, from the top
    calls            which cycles the next call holds, and when it is dispatched
    anakin           a ring whose cycles are such calls
    mapped_seeds     rings of several seeds, whose cycles are common calls
    running          the three ways to run a ring: threads, one thread, one program
    state            a ring between two cycles as arrays and a dict, and back
"""
