"""Starts services of one project as processes that share what they import, which is most of what starting them takes.

Arguments: MODULE:LOG, then the service's own arguments, for each service; `--` between services.
"""

import importlib
import itertools
import os
import sys


def services(words):
    groups = itertools.groupby(words, lambda word: word == "--")
    return [list(group) for is_end, group in groups if not is_end]


def run(main, name, log, arguments):
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Services name themselves after their program.
    sys.argv = [name, *arguments]
    sys.exit(main())


modules = []
for first, *arguments in services(sys.argv[1:]):
    module, log = first.split(":")
    modules.append((importlib.import_module(module), log, arguments))
for module, log, arguments in modules:
    project, _, name = module.__name__.split(".")
    if os.fork() == 0:
        run(module.main, f"{project}-{name}", log, arguments)
ended, status = os.waitpid(-1, 0)
sys.exit(f"process {ended} ended: {status}")
