"""From values to messages and back.

Read `requests` (what a caller asks for, as messages), `streamed_answer` (what the messages of a
stream amount to) and `error_mapping` (a failed call as an exception). Nothing here waits, nor
knows of channels.
"""
