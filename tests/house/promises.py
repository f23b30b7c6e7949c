"""The tests of each promise and each invariant. `test_promises.py` checks that `make test` runs them."""

from __future__ import annotations

from collections.abc import Mapping

PROCESSES, STOPS, REDIS, SURROUNDINGS, PARTS = (
    f"tests/chaos/test_{faults}.py::test_no_job_is_lost_doubled_or_changed_under"
    for faults in ("processes", "stops", "redis", "surroundings", "parts")
)
STATES = "tests/integration/test_state_machine.py"
RECORDS = "tests/integration/test_records.py"
JOURNAL = "tests/integration/test_journal.py"
CHAINS = "tests/integration/test_chains.py"
USAGE = "tests/integration/test_usage.py"
ACCESS = "tests/integration/test_access.py"
GUARD = "tests/integration/test_guarded_ways_in.py"

#: Tests by the rows of the README's table of the promise.
PROMISES: Mapping[str, tuple[str, ...]] = {
    "reaches one terminal state, whatever is killed": (
        f"{PROCESSES}[worker_kills]",
        f"{PROCESSES}[cancels]",
        f"{REDIS}[valkey_kills]",
        f"{STOPS}[rolling_restarts]",
        f"{PROCESSES}[poison]",
        f"{PARTS}[split_scenes]",
        "tests/acceptance/test_survival.py::test_a_job_outlives_the_sigkill_of",
    ),
    "which never changes": (
        "tests/chaos/test_checker.py::test_each_violation_is_named",
        f"{STATES}::test_any_order_of_operations_leads_where_the_model_says",
    ),
    "one result becomes visible": (
        f"{STOPS}[zombies]",
        "tests/integration/test_pipeline.py::test_a_worker_that_lost_its_lease_changes_nothing",
    ),
    "webhooks at least once, the same bytes under the same id": (
        f"{SURROUNDINGS}[bad_receivers]",
        "tests/integration/test_keeper.py::test_a_refused_event_is_sent_again_byte_for_byte_under_the_same_id",
    ),
    "loss of the network, a store in trouble, a full disk or memory": (
        f"{REDIS}[bad_network]",
        f"{SURROUNDINGS}[disk_full]",
        f"{SURROUNDINGS}[store_away]",
        "tests/integration/test_store_away.py::test_a_result_waits_for_the_store_and_is_computed_once",
        f"{REDIS}[redis_full]",
        "tests/chaos/test_stores.py::test_no_job_is_lost_doubled_or_changed_under_s3_trouble",
    ),
    "the total loss of Redis": (
        f"{REDIS}[flushall]",
        f"{JOURNAL}::TestSubmit::test_that_crashed_is_completed_by_its_repetition",
        f"{JOURNAL}::TestEnds::test_a_crash_in_complete_ends_the_job_once",
        f"{JOURNAL}::TestLossOfRedis::test_live_jobs_run_again_and_ended_ones_stay_as_they_ended",
    ),
    "two clients, one key: one job": (f"{SURROUNDINGS}[one_key]",),
}

#: Tests by the numbers of ARCHITECTURE.md's invariants.
INVARIANTS: Mapping[int, tuple[str, ...]] = {
    1: (
        f"{STATES}::test_any_order_of_operations_leads_where_the_model_says",
        f"{JOURNAL}::TestEnds::test_of_a_cancel_and_an_expiry_one_wins",
    ),
    2: (
        f"{RECORDS}::TestComplete::test_makes_the_result_visible_once",
        f"{JOURNAL}::TestEnds::test_a_result_is_committed_once",
    ),
    3: (
        f"{RECORDS}::TestSubmit::test_twice_is_one_job",
        f"{RECORDS}::TestClaim::test_with_the_same_nonce_returns_the_same_job",
        f"{STATES}::test_any_order_of_operations_leads_where_the_model_says",
    ),
    4: ("tests/house/test_clock.py::test_the_job_store_reads_no_clock_but_that_of_redis",),
    5: (
        f"{ACCESS}::test_an_id_is_each_tenants_own",
        f"{ACCESS}::test_no_body_or_header_names_a_tenant",
        "tests/integration/test_stored_models.py::test_the_check_of_a_worker_outlives_it_and_redis",
        f"{ACCESS}::test_anothers_upload_is_a_missing_one",
    ),
    6: ("tests/unit/processors/test_testing.py::test_a_breach_is_named",),
    7: (
        f"{GUARD}::test_every_refused_reference_gets_the_same_answer_and_nobody_is_asked",
        f"{GUARD}::test_no_refused_receiver_is_taken",
    ),
    8: (
        "tests/geo/test_bad_input.py::test_formats_that_name_other_files_are_not_even_there",
        "tests/geo/test_bad_input.py::test_bad_files_are_refused_with_the_reason",
    ),
    9: ("tests/geo/test_memory.py::test_scenes_many_times_as_high_or_as_wide_take_no_more",),
    10: (
        f"{RECORDS}::TestHeartbeat::test_keeps_progress_that_never_goes_backwards",
        f"{RECORDS}::TestProgressOverAttempts",
        f"{JOURNAL}::test_a_job_whose_end_is_proposed_is_not_claimed_before_it_is_stored",
    ),
    11: (
        "tests/acceptance/test_logs.py::test_no_secret_and_no_signed_query_string_is_in_any_log",
        "tests/acceptance/test_logs.py::test_nobody_writes_lines_or_names_or_controls_a_terminal",
        "tests/integration/test_metrics.py::TestTheRoute::test_requests_count_by_template_and_never_by_what_a_client_chose",
    ),
    12: ("tests/integration/test_signals.py::test_a_sigterm_at_the_worst_moment_ends_the",),
    13: (
        "tests/integration/test_object_events.py",
        "tests/integration/test_drops.py::test_a_rule_may_not_write_where_it_reads",
    ),
    14: (
        "tests/integration/test_batch_survival.py::test_no_line_is_lost_or_doubled_however_keepers_die",
        "tests/integration/test_batch_losses.py::test_a_closed_batch_gets_no_member_from_a_keeper_that_was_asleep",
    ),
    15: ("tests/unit/processors/multimodal/test_encoder.py::test_what_people_type_makes_no_place",),
    16: (
        f"{USAGE}::test_an_attempt_that_is_repeated_or_fenced_does_not_count",
        f"{USAGE}::test_the_sums_survive_a_purge_that_ends_anywhere_and_the_loss_of_redis",
        f"{PROCESSES}[worker_kills]",
        f"{REDIS}[flushall]",
    ),
    17: (
        f"{CHAINS}::TestOrder::test_a_follower_begins_after_its_upstream_has_succeeded",
        f"{CHAINS}::TestFiles::test_an_upstream_is_kept_until_its_followers_have_ended",
        f"{CHAINS}::test_no_order_of_crashes_and_losses_loses_doubles_or_reorders_a_job",
        "tests/chaos/test_chains.py::test_no_job_is_lost_doubled_or_changed_under[chains]",
    ),
}
