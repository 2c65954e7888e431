"""What a process keeps after loading."""

import gc

from blockdraft_runtime.event_loop import return_free_memory


def test_no_garbage_is_looked_for_in_what_stays() -> None:
    stays: list[list[int]] = [[] for _ in range(10)]
    assert any(each is stays for each in gc.get_objects())
    return_free_memory()
    assert all(each is not stays for each in gc.get_objects())
