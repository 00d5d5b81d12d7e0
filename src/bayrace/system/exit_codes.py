"""How a process of ours says with its exit code what became of its work."""

FINISHED, FAILED, INTERRUPTED = 0, 2, 130
