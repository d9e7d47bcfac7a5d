"""Whether a user's agent survives crashes: it is run, killed at every commit, resumed, and compared.

    crashing       the door: `crashtest(target, input) -> Report`
    fixture        the same for pytest, with processes that all tests share
    campaign       the whole of it: which runs are played, and where each is killed
    fork_server    where the agent's processes come from; `child` is what each of them does
    orphans        no process is left behind, whoever dies first
    functions      in the child: the user's own `setup` and `check`
    watching       in the child: the store and the tools are watched, and the process dies where it is told to
    replaying      in the child: a model that answers as it did in the first run
    journal        what the child did, kept outside its store
    evidence       all that a run has left behind; `recorded` is what its log says of the calls
    judging        one killed run beside the uninterrupted one
    noting         what the test could not try, as the uninterrupted run shows
    report, junit  what came of it, for people and for CI

Nothing of the user's is imported here but in the children.
"""
