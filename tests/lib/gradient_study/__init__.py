"""Error of THC's average on gradients of real models: a fast THC in torch, the models, and what is compared."""
