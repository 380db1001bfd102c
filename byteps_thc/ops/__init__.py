"""THC's kernels as operators of PyTorch, to build a compressed collective of one's own in a compiled function.

    table, key = make_table(resolved, device), make_key("outer", resolved, worker, device)
    norms = block_norms(gradient, residual, rotation_block)          # then: maximum over the workers
    codes, kept, clamped = encode(gradient, residual, norms, max_norms, table, key, threshold, rotation_block)
    sums = lookup_sum(all_codes, table, value_bits)                  # all_codes: uint8[workers, bytes]
    average = decode(sums, max_norms, table, key, coordinates, workers, decode_threshold, rotation_block, dtype)

They are torch.ops.byteps_thc.*, too, for tensors on the CPU and on CUDA and ROCm GPUs, with the same bits on each.
torch.compile(fullgraph=True) and CUDA graphs take them: no call waits for a GPU, what changes from round to round is in
tensors, and sizes may be symbolic. They have no gradient of their own: backward through them is an error. Errors are
InputError, and ConfigurationError for what the GPU kernels do not take (docs/gpu.md).

resolved: ThcConfig.resolve(workers), which has decode_threshold and value_bits; threshold: resolved.table's. Sizes
below: n coordinates, P = n padded to a multiple of 64, B rotation blocks, b bits of a code, g the largest table value.
"""

import byteps_thc.needs_torch  # noqa: F401
from byteps_thc.keys import set_round
from byteps_thc.ops.arguments import make_key, make_table
from byteps_thc.ops.functions import block_norms, decode, encode, lookup_sum

__all__ = ["block_norms", "decode", "encode", "lookup_sum", "make_key", "make_table", "set_round"]
