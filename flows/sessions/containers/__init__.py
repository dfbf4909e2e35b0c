"""Sessions as containers of Podman: made, ended, held against what they were made with."""
