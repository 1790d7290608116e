"""Try to break FLOATER with damaged files, odd configs, kills between any two writes, two processes
at once and full disks.

    PYTHONPATH=tools python -m torture                 all families, for at most ten minutes
    PYTHONPATH=tools python -m torture --seconds 90    as many cases as fit into 90 seconds

Time is divided evenly: each family gets a share. Each case runs in its own process, forked from one
that has imported everything, and has one of these outcomes:

    right      it did what it should, to the bit where that is guaranteed
    refused    one line on standard error and exit code 2; nothing on disk has changed except what
               was already broken
    wrong      it reported nothing, and the result is not the right one
    lost       something that existed before is gone or has changed
    traceback  it ended in anything but a result or one line
    hang       it did not end in time

The last four are failures. Each is printed with what is needed to reproduce it, and the exit code
is 1.
"""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # before anything imports tokenizers
