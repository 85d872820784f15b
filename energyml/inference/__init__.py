"""What queries are answered with: costs of answers, expectations, and precision."""
