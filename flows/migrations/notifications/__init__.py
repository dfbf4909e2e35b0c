"""What people are told of rollouts: owners in notices, operators in tables and charts."""
