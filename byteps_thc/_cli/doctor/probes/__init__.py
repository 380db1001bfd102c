"""Programs that try something in a process of their own, which may crash or hang there, and print one line of JSON."""
