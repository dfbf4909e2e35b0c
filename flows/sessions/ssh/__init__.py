"""How people come in with ssh: their keys, the key of the host, and a port that stays."""
