"""Faults that are met in other tests, and those that no test meets."""

from __future__ import annotations

ELSEWHERE = [
    ("a rank that cannot start", "test_a_rank_that_cannot_start_is_reported_by_fork"),
    (
        "SIGKILL with a reply unread",
        "test_a_rank_that_dies_with_its_reply_unread_is_reported",
    ),
    ("a stopped zygote, in close", "test_close_kills_a_zygote_that_hangs"),
    (
        "Ctrl-C at any line of a call",
        "test_a_later_call_can_be_interrupted_at_any_line",
    ),
    ("Ctrl-C at any line of a fork", "test_fork_can_be_interrupted_at_any_line"),
    ("SIGINT at any line of a rank", "test_a_rank_can_be_interrupted_at_any_line"),
    ("Ctrl-C at a terminal", "test_ctrl_c_at_a_terminal_interrupts_all_ranks"),
    ("an end of the script without close", "test_nothing_outlives_a_script_that_ends"),
    (
        "SIGKILL of the whole process group",
        "test_nothing_outlives_a_master_whose_zygote_or_group_is_killed",
    ),
    ("an end from a thread", "test_a_session_of_a_thread_ends_with_the_script"),
    ("pytest -x", "test_nothing_outlives_pytest_x"),
    ("two jobs that share a compile cache", "test_two_jobs_share_a_compile_cache"),
    (
        "pools of processes of every kind",
        "test_a_pool_of_processes_works_beside_a_session",
    ),
    (
        "children of the script",
        "test_a_child_of_the_script_ends_without_harm_to_the_session",
    ),
    (
        "a cgroup's quota of one core",
        "test_the_quota_of_a_control_group_limits_the_cores",
    ),
    (
        "a checkpoint cut at any byte",
        "test_a_file_cut_at_any_byte_is_an_error_and_leaves_the_old_values",
    ),
    ("SIGKILL while saving", "test_a_kill_at_any_moment_leaves_a_whole_file"),
    (
        "low limits in the middle of a session",
        "test_too_many_open_files_are_named_with_their_limit",
    ),
    ("a restarted kernel", "test_a_session_in_a_notebook"),
    ("NaN that a check finds", "test_the_first_bad_row_and_its_rank_are_named"),
]
"""Faults, and the tests that meet them, by name."""

MISSING = {
    "a cgroup out of memory": (
        "a test would have to make a cgroup; that of a machine that runs tests is not"
        " the tests' to change. Memory that a limit of the process forbids is a row; so"
        " is what the kernel's killer sends, SIGKILL, at all moments of the table"
    ),
    "a jump of the machine's clock": (
        "it would move the clock of all that runs there. What Python says of the time"
        " of day is moved in a row, before the deadline of each wait is computed"
    ),
    "holding a lock of synk's": (
        "there is none: ranks agree by words in shared memory that only grow, and"
        " semaphores only wake who sleeps. The lock of PyTensor's cache is a row"
    ),
}
"""Fault -> why there is no test."""
