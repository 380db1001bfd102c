"""GPU kernels of ranks that decode. block_batch.BlockBatch launches them."""
