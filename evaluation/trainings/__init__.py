"""Small trainings of n workers in one process, whose gradients are averaged by any of the averages."""
