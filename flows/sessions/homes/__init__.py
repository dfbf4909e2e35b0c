"""The persistent parts of sessions: homes and named volumes, their snapshots, and the room that they need."""
