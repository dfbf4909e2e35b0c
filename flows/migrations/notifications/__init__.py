"""Messages about rollouts: notices for owners, tables and charts for operators."""
