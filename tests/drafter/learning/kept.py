"""Whole recordings, as a recorder leaves them."""

from blockdraft_drafter.learning.recordings import Recording, RecordingFile, Recordings


class Kept(Recordings):
    """A ring that recordings are added to at once."""

    def add(self, recording: Recording) -> str:
        """Write a recording and return its name."""
        names = ("target_fingerprint", "feature_form", "layer_ids", "answer_start")
        about = {name: getattr(recording, name) for name in (*names, "temperature", "recorded_at")}
        with RecordingFile(self) as file:
            file.append(recording.features)
            return file.finish(recording.token_ids, **about)
