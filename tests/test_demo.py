"""The demonstration runs, learns something, and shows both backends agreeing."""

from energyml import demo


def test_the_demo_learns_to_read():
    said: list[str] = []
    accuracy = demo.run(said.append, training=300, test=60)
    text = "\n".join(said)
    assert accuracy > 0.5  # one letter in eight by chance
    assert "chain of order 1" in text
    exact, oracle = (line.split(maxsplit=1)[1] for line in said if line.strip().startswith(("exact ", "enumerate ")))
    assert exact == oracle
