"""What the claims of tests/evaluation are made of, how they are run, and the page that says what came of them."""
