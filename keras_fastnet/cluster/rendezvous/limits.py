"""How long the parts of a meeting may take, in seconds, and how much may be said."""

TICK_SECONDS = 0.05
RETRY_SECONDS = 0.2
# A process that is there answers at once, since none does anything else meanwhile.
ANSWER_SECONDS = 5.0
# A follower waits this much longer than the meeting lasts, to hear who is missing.
VERDICT_SECONDS = 15.0
# Rank 0 stays this long after it found an error, to tell those that come next.
LINGER_SECONDS = 5.0
# When a worker that waits says so: first, and then again and again.
FIRST_NOTICE_SECONDS = 10.0
NOTICE_SECONDS = 60.0
# The list of some 30,000 workers; more than that on one line is no worker.
LONGEST_LINE_BYTES = 1 << 20
