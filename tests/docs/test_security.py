"""What docs/security.md protects is tested: each row of its tables has tests of its own."""

import re

from tests.docs.pages import ROOT, read

PAGE = read("docs/security.md")
# The threats and questions, by how they begin.
_TESTS = """
no API key, or one that is wrong or revoked
    test_calls_need_a_key_but_health_and_reflection_do_not test_keys_come_and_go_without_a_restart
    test_calls_without_a_key_by_the_hundred_reach_nothing
a leaked key file
    test_a_digest_is_no_key test_what_is_malformed_is_named_and_never_quoted
eavesdropping, a false server
    test_new_connections_get_the_new_certificate_and_old_ones_go_on
    test_half_an_exchange_changes_nothing
    test_the_wrong_encryption_is_refused_and_others_are_answered
a stolen key
    test_callers_may_have_to_show_a_certificate
one tenant takes everything
    test_who_is_over_its_limits_is_refused_and_others_are_not
    test_who_floods_the_service_holds_up_only_itself test_no_tenant_takes_all_the_room_for_waiting
slots held for clients that left or timed out
    test_who_does_not_wait_any_longer_gives_the_place_back_at_once
    test_a_text_that_waits_for_a_tokenizer_waits_no_longer_than_its_deadline
slots held by clients that do not read
    test_who_does_not_read_loses_its_place_over_grpc
    test_who_does_not_read_loses_its_place_over_http
requests too large, malformed, or deadly to a verifier
    test_what_is_too_large_is_refused_before_it_is_decoded
    test_undecodable_requests_get_a_typed_error
    test_a_request_that_kills_verifiers_is_refused_after_two_deaths
short HTTP requests for much work
    test_more_completions_than_are_ever_held_are_no_matter_of_time
    test_a_prompt_is_tokenized_once_for_all_its_completions test_a_large_body_is_read_aside
small messages that inflate to gigabytes
    test_compressed_messages_are_refused_before_they_are_inflated
    test_compressed_bodies_are_refused_as_they_are
silent connections
    test_hundreds_of_connections_that_say_nothing_sensible_hold_up_nobody
    test_who_says_nothing_sensible_is_let_go
many connections, and bodies that dawdle
    test_connections_are_bounded_in_number test_a_body_has_to_come_in_time
    test_large_bodies_that_dawdle_leave_room_for_others
web pages that use a service without keys
    test_web_pages_reach_nothing_without_a_key
guessing others' texts by the speed of prefix cache or recent completions
    test_what_a_tenant_was_told_before_takes_fewer_steps
    test_each_tenant_has_a_prefix_cache_of_its_own test_a_prefix_is_shared_only_under_the_same_salt
control tokens in a user's text
    test_text_survives_and_never_becomes_a_control_token
texts and keys in logs or metrics
    test_neither_texts_nor_keys_are_in_logs_or_metrics test_keys_are_not_logged_with_what_is_no_http
    test_no_text_and_no_tokens_are_logged_or_counted
strangers on the network, false peers
    test_no_other_process_gets_through test_certificates_are_for_the_name_and_not_for_the_address
    test_who_shows_no_certificate_reaches_no_verifier
    test_who_shows_no_certificate_reaches_no_drafter
    test_a_drafter_on_another_host_shows_a_certificate_and_wants_one
    test_new_connections_show_and_demand_what_the_files_say_now
    test_a_verifier_that_comes_back_with_another_authority_is_believed_with_the_files
    test_a_drafter_that_comes_back_with_another_authority_is_believed_with_the_files
malformed sequences
    test_the_outer_side_names_the_field
a verifier of another target
    test_one_name_stands_for_one_target
a wrong, late or hostile drafter
    test_malformed_drafts_are_not_taken test_an_impossible_handshake_is_refused
    test_a_stopped_drafter_holds_nobody_up test_drafting_does_not_change_the_answer
malformed features
    test_a_huge_shape_is_refused_without_being_allocated
    test_features_that_cannot_be_divided_are_refused
other users read features; a false file is mapped
    test_only_its_user_may_open_it test_nothing_else_is_opened
    test_only_sizes_within_bounds_are_mapped
strangers call the leader
    test_strangers_are_turned_away test_strangers_that_dawdle_hold_up_no_follower
    test_no_process_can_call_after_the_meeting
hosts that run something else
    test_processes_that_run_different_things_do_not_meet
others use `blockdraft debug`
    test_only_its_operator_sees_a_process_from_inside
texts in traces
    test_a_request_is_a_span_of_its_callers_trace
code in pickles
    test_pickles_are_never_opened test_hub_ids_fetch_no_pickles
false headers, bombs, links out of the folder, pipes
    test_headers_that_lie test_header_bombs test_links_that_lead_out test_pipes_and_loops
    test_gguf_tensors_outside_the_file_or_each_other test_files_that_lie
another file under its name
    test_another_wheel_of_that_name_is_refused
a broken file admits everyone, or nobody
    test_a_broken_file_changes_nothing test_files_that_are_missing_are_named
What is kept?
    test_what_is_recorded_is_what_was_said_and_nothing_that_is_excluded
Where?
    test_only_the_owner_may_read
How long?
    test_the_oldest_go_and_the_limit_always_holds
Which requests are excluded?
    test_what_is_excluded_or_begins_anew_leaves_nothing test_a_tenant_may_be_kept_out_of_samples
How is it deleted?
    test_clear_leaves_nothing_of_ours_and_names_are_not_used_again
What if a process does not know of learning?
    test_of_what_is_excluded_nothing_is_sent_to_learn_from
What if clients send nonsense?
    test_answers_are_the_same_while_weights_come_and_go
a repeated prompt counts once
    test_a_prompt_that_is_asked_again_and_again_is_compared_on_once
    test_nonsense_that_is_asked_again_and_again_is_not_promoted
weights learned from much nonsense can be promoted
    test_nonsense_that_was_held_out_too_goes_back_when_the_flood_ends
What if weights kill the drafter?
    test_a_version_that_kills_what_loads_it_never_reaches_the_drafter
"""
SHOWN_BY = {
    beginning: names.split() for beginning, names in re.findall(r"(\S.*)\n((?:    .*\n)+)", _TESTS)
}


def threats() -> list[str]:
    """Return the cells of threats and questions; a continued row has one in its second column."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.M):
        head, _, *rows = [
            [cell.strip() for cell in line[1:-1].split("|")] for line in table.splitlines()
        ]
        if {"Protection", "Fact"} & set(head):
            column = head.index("Threat") if "Threat" in head else 0
            found += [row[column] or row[column + 1] for row in rows]
    return found


def test_every_protection_has_tests_that_exist() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text("utf-8"), re.M)
    }
    assert {name for names in SHOWN_BY.values() for name in names} <= defined
    for threat in threats():
        assert sum(map(threat.startswith, SHOWN_BY)) == 1, threat
    for beginning in SHOWN_BY:
        assert sum(threat.startswith(beginning) for threat in threats()) == 1, beginning


def test_users_read_no_names_of_tests() -> None:
    for page in ("README.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))):
        if page not in ("docs/architecture.md", "docs/benchmarks.md", "docs/log.md"):
            assert not re.search(r"\btest_\w+", read(page)), page
