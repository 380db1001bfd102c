"""What BytePS 0.2.5's source needs to be compiled with today's Python and torch, and to run on a host without a GPU.

Exact strings, each of which must be found as often as stated: a source that differs is an error, not a silent no-op.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from byteps_build.errors import BuildError


@dataclass(frozen=True)
class Substitution:
    """In `file` (relative to the source), replace `pattern`, which must be there `count` times."""

    file: str
    pattern: str
    replacement: str
    why: str
    count: int = 1


def apply(source: Path, substitutions: Iterable[Substitution]) -> None:
    """Make the substitutions in the source tree, in order; BuildError if a pattern is not found as often as stated."""
    for substitution in substitutions:
        path = source / substitution.file
        if not path.is_file():
            raise BuildError(f"{substitution.file} is not in BytePS's source ({substitution.why})")
        text = path.read_text(encoding="utf-8")
        found = text.count(substitution.pattern)
        if found != substitution.count:
            raise BuildError(
                f"{substitution.file}: found {substitution.pattern!r} {found} times instead of {substitution.count}; "
                f"is this another version of BytePS? ({substitution.why})"
            )
        path.write_text(text.replace(substitution.pattern, substitution.replacement), encoding="utf-8")


_TORCH_VERSION = "torch's headers define TORCH_VERSION themselves, as a string"
_THC_HEADERS = "torch has no TH and THC (its old tensor library) headers any more"
_POLLING = "8 threads a worker poll their queues every microsecond, which leaves a small host no CPU for anything else"
_RECEIVING = "receiving threads poll without a pause, and hold the lock that the others and senders need meanwhile"
_LEFTOVERS = "a worker that is killed leaves its shared memory: a lock tells which of it is in use (leftover_memory.py)"

SUBSTITUTIONS: tuple[Substitution, ...] = (
    # Compiling with today's torch.
    Substitution(
        "setup.py",
        'pytorch_compile_flags = ["-std=c++14" if',
        'pytorch_compile_flags = ["-std=c++20" if',
        "torch's headers are C++20",
    ),
    Substitution(
        "setup.py",
        "have_cuda = is_torch_cuda(build_ext, include_dirs=options['INCLUDES'],\n"
        "                              extra_compile_args=pytorch_compile_flags)",
        "have_cuda = os.environ['BYTEPS_WITH_CUDA'] == '1'",
        "the check includes THC.h and calls include_paths(cuda=True), both gone; the build script knows",
    ),
    Substitution(
        "setup.py", "updated_macros, 'TORCH_VERSION'", "updated_macros, 'BYTEPS_TORCH_VERSION'", _TORCH_VERSION
    ),
    *(
        Substitution(f"byteps/torch/{file}", "#if TORCH_VERSION", "#if BYTEPS_TORCH_VERSION", _TORCH_VERSION, count)
        for file, count in (("ops.cc", 1), ("adapter.cc", 1), ("ready_event.cc", 5))
    ),
    Substitution(
        "byteps/torch/ops.h", "#include <TH/TH.h>\n\n#if HAVE_CUDA\n#include <THC/THC.h>\n#endif\n", "", _THC_HEADERS
    ),
    Substitution(
        "byteps/torch/ops.h",
        "#define PUSHPULL_H(torch_Tensor, THTensor)",
        "#if 0\n#define PUSHPULL_H(torch_Tensor, THTensor)",
        "these declarations take THTensor*, and nothing defines or calls them",
    ),
    Substitution(
        "byteps/torch/ops.h",
        "PUSHPULL_H(torch_cuda_DoubleTensor, THCudaDoubleTensor)\n#endif\n",
        "PUSHPULL_H(torch_cuda_DoubleTensor, THCudaDoubleTensor)\n#endif\n#endif\n",
        "end of those declarations",
    ),
    Substitution(
        "byteps/torch/cuda_util.cc", "#include <THC/THC.h>", "#include <c10/cuda/CUDAException.h>", _THC_HEADERS
    ),
    Substitution("byteps/torch/cuda_util.cc", "THCudaCheck(", "C10_CUDA_CHECK(", _THC_HEADERS, 3),
    Substitution(
        "byteps/common/communicator.h",
        "#include <cstdlib>\n",
        "#include <cstdlib>\n#include <memory>\n",
        "std::shared_ptr",
    ),
    Substitution(
        "byteps/torch/ops.py",
        "from distutils.version import LooseVersion\n",
        "",
        "not used, and distutils left Python with 3.12",
    ),
    # Running.
    Substitution(
        "byteps/torch/ops.cc",
        'm.def("byteps_torch_wait_and_clear", &WaitAndClear);',
        'm.def("byteps_torch_wait_and_clear", &WaitAndClear,\n'
        "        pybind11::call_guard<pybind11::gil_scoped_release>());",
        "it waits for a thread that drops a tensor, for which that thread needs the GIL: a deadlock",
    ),
    Substitution(
        "byteps/common/ready_table.cc",
        "  _ready_table[key] = cnt;\n",
        "  return _ready_table[key] = cnt;\n",
        "no return in a function that returns int: undefined behaviour, met by every compressor",
    ),
    Substitution(
        "byteps/common/shared_memory.cc",
        "  shm_name += std::to_string(key);\n",
        '  if (getenv("DMLC_PS_ROOT_PORT")) shm_name += std::string(getenv("DMLC_PS_ROOT_PORT")) + "_";\n'
        '  shm_name += std::to_string(BytePSGlobal::GetWorkerID()) + "_";\n'
        "  shm_name += std::to_string(key);\n",
        "workers on one host, and jobs on one host, would share the buffers that they push from",
    ),
    Substitution(
        "byteps/common/shared_memory.cc",
        "  int shm_fd = shm_open(shm_name.c_str(), O_CREAT | O_RDWR, 0666);\n"
        '  BPS_CHECK_GE(shm_fd, 0) << "shm_open failed for " << shm_name;\n',
        "  int shm_fd = -1;\n"
        "  for (struct stat status = {}; status.st_nlink == 0;) {  // 0: removed before it was locked\n"
        "    if (shm_fd >= 0) close(shm_fd);\n"
        "    shm_fd = shm_open(shm_name.c_str(), O_CREAT | O_RDWR, 0666);\n"
        '    BPS_CHECK_GE(shm_fd, 0) << "shm_open failed for " << shm_name;\n'
        "    while (flock(shm_fd, LOCK_SH) != 0) BPS_CHECK_EQ(errno, EINTR) << strerror(errno);\n"
        "    BPS_CHECK_EQ(fstat(shm_fd, &status), 0) << strerror(errno);\n"
        "  }\n",
        _LEFTOVERS,
    ),
    Substitution(
        "byteps/common/shared_memory.cc",
        "#include <sys/shm.h>\n",
        "#include <sys/file.h>\n#include <sys/shm.h>\n",
        "flock",
    ),
    # setup.py copies launch.py to bin/bpslaunch.
    Substitution(
        "launcher/launch.py",
        "        t = [None] * local_size\n",
        "        t = [None] * local_size\n"
        "        from byteps.plugins import leftover_memory\n"
        "        leftover_memory.remove_and_say()\n",
        _LEFTOVERS,
    ),
    Substitution(
        "launcher/launch.py",
        "                allocations = allocate_cpu(local_size)\n",
        "                allocations = allocate_cpu(local_size) or []\n"
        "                cpu_sets = [cpu_set for allocation in allocations for cpu_set in allocation]\n"
        "                usable = os.sched_getaffinity(0)\n"
        "                if len(allocations) < local_size or not all(s and usable.issuperset(s) for s in cpu_sets):\n"
        '                    print("too few CPUs to give each process its own: they run on all of them")\n'
        "                    bind_to_cores = False\n",
        "it counts half of the CPUs as hyperthreads, so that one CPU, or none, is left for the first process of a host "
        "with two: IndexError; and in a container with some of the host's CPUs it names others",
    ),
    Substitution(
        "byteps/common/core_loops.cc",
        "std::chrono::nanoseconds(1000)",
        "PollInterval()",
        _POLLING,
        11,
    ),
    Substitution(
        "byteps/common/core_loops.cc",
        "void FinishOrProceed(",
        "static std::chrono::nanoseconds PollInterval() {\n"
        '  static const char* interval_ns = getenv("BYTEPS_POLL_NS");\n'
        "  return std::chrono::nanoseconds(interval_ns ? atol(interval_ns) : 1000);\n"
        "}\n\n"
        "void FinishOrProceed(",
        _POLLING,
    ),
    Substitution(
        "3rdparty/ps-lite/src/zmq_van.h",
        "          std::lock_guard<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        "          std::unique_lock<std::mutex> lk(mu_);\n          // the zmq_msg_recv",
        _RECEIVING,
    ),
    Substitution(
        "3rdparty/ps-lite/src/zmq_van.h",
        "          } else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n",
        "          } else if (errno == EAGAIN) { // ZMQ_DONTWAIT\n"
        '            static const char* interval_ns = getenv("BYTEPS_POLL_NS");\n'
        "            lk.unlock();\n"
        "            if (interval_ns) std::this_thread::sleep_for(std::chrono::nanoseconds(atol(interval_ns)));\n",
        _RECEIVING,
    ),
    Substitution(
        "byteps/server/server.cc",
        "  // flag mu and its protected map\n",
        "  update_buf_.reserve(1 << 16);\n  compressor_map_.reserve(1 << 16);\n\n  // flag mu and its protected map\n",
        "engine threads look keys up while the handler adds new ones without a lock; do not rehash under them",
    ),
    # THC's compressor: loaded by every server, part of the package.
    Substitution(
        "byteps/server/__init__.py",
        "    SERVER_LIB_CTYPES.byteps_server()\n",
        "    import byteps.plugins\n    byteps.plugins.load_for_server()\n    SERVER_LIB_CTYPES.byteps_server()\n",
        "compressors of other packages must be registered before the server runs",
    ),
    Substitution(
        "setup.py",
        "    include_package_data=True,\n",
        "    package_data={'byteps.plugins': ['*.so', '*.txt']},\n",
        "the package carries the compressors, and not zeromq and ps-lite's sources",
    ),
)
