/*
 * WeightStream, C interface: runs a program exported by WeightStream (a `.pte` and a `.ptd`) with its
 * weights inside a budget. This interface needs no ExecuTorch; for ExecuTorch's Module see module.h.
 *
 * Rules that hold everywhere:
 * - Every function that can fail returns a ws_status. WS_OK is 0. On failure nothing is written through
 *   output parameters, and ws_last_error() holds a full sentence for the calling thread.
 * - A NULL argument is an error (WS_INVALID_ARGUMENT) unless the function says that it may be NULL.
 * - Strings are NUL-terminated UTF-8. Paths are taken as given to the operating system.
 * - Numbers of statuses never change their meaning; new ones are added at the end.
 * - No function lets an exception or a panic of the implementation through.
 *
 * This file and the library's exported functions are held together by a test.
 */
#ifndef WEIGHTSTREAM_WEIGHTSTREAM_H_
#define WEIGHTSTREAM_WEIGHTSTREAM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a call came to. Append-only. */
typedef enum ws_status {
  WS_OK = 0,
  /* A NULL pointer, a text that is not UTF-8, or an index out of range. */
  WS_INVALID_ARGUMENT = 1,
  /* An option is unknown, of the wrong type, or cannot take effect. */
  WS_INVALID_OPTION = 2,
  /* Inputs of a call are not what the program was exported for. */
  WS_INVALID_INPUT = 3,
  /* The operating system refused a file operation. */
  WS_IO = 4,
  /* A file is damaged, truncated, or of another kind. */
  WS_MALFORMED = 5,
  /* A method, weight, or other named entry is not there. */
  WS_MISSING = 6,
  /* Two things that must agree do not, for example a `.pte` and the `.ptd` of another export. */
  WS_MISMATCH = 7,
  /* The budget is below the floor; the text holds the least number of bytes. */
  WS_BUDGET_TOO_SMALL = 8,
  /* The program needs something that this machine or this build does not have. */
  WS_UNSUPPORTED = 9,
  /* Memory ran out, within the budget or on the machine. */
  WS_OUT_OF_MEMORY = 10,
  /* The model is executing already. */
  WS_BUSY = 11,
  /* The compiled code left the recorded order of reads. */
  WS_DIVERGENCE = 12,
  /* A function called by the compiled code failed. */
  WS_COMPILED_CODE = 13,
  /* A device call failed. */
  WS_DEVICE = 14,
  /* An earlier failure left the model in a state that cannot be trusted, or it was loaded before a fork, by another
   * process; destroy it. */
  WS_POISONED = 15,
  /* A rule inside the library was broken, or it panicked; please report it. */
  WS_INTERNAL = 16
} ws_status;

/* A loaded method of a program. */
typedef struct ws_model ws_model;

/* The outputs of one execution. */
typedef struct ws_outputs ws_outputs;

/* Type of an option's value. */
typedef enum ws_option_type { WS_OPTION_BOOL = 0, WS_OPTION_INT = 1, WS_OPTION_STRING = 2 } ws_option_type;

/*
 * One option. From here to the end of the list scripts/generate writes:
 *   weight_offload_budget (string)
 *       'auto' or 'shared'; a size goes into weight_offload_budget_mb or
 *       weight_offload_budget_bytes. For offloading programs.
 *       'auto' chooses the budget at load: what is free on the device, less what the method takes
 *       beside its weights, and at most what all weights occupy. 'shared' lets the store share the
 *       device's memory with others: its budget changes between passes. Give one of the three
 *       budgets. Without any, the budget is the floor, the least possible one.
 *   weight_offload_budget_mb (int)
 *       a number from 0 up, in MB of 1,048,576 bytes, such as 512 or '0.5'. For offloading
 *       programs.
 *       The budget: device memory for weights and direct constants.
 *   weight_offload_budget_bytes (string)
 *       a number of bytes, as a string of decimal digits. For offloading programs.
 *       The budget in bytes. A string, since ExecuTorch's ints have 32 bits; an int is taken as
 *       well.
 *   weight_offload_priority (int)
 *       a whole number; the default is 0. For offloading programs.
 *       Of a store with the budget 'shared': the bytes that a store of higher priority wants come
 *       before those of a lower one. Floors come first in any case.
 *   weight_offload_policy (string)
 *       a string, one of 'planned', 'lru'; the default is planned. For all programs.
 *       Who is on the device. 'planned' decides at load what stays and what streams; 'lru' evicts
 *       what was used least recently.
 *   weight_offload_host (string)
 *       a string, one of 'auto', 'mapped', 'pinned', 'staged'; the default is auto. For GPU
 *       programs.
 *       What a GPU copies weights from: the mapped file, registered in place; a copy in pinned
 *       memory; or a ring of pinned memory that is filled from the file during passes. 'auto'
 *       chooses at load, by what the device can do and by the memory that is free.
 *   weight_offload_staging_mb (int)
 *       a number from 1 up, in MB of 1,048,576 bytes, such as 512 or '0.5'. For GPU programs.
 *       Size of the ring of 'staged', at least 8 MB. Without it, the ring holds everything that is
 *       copied, but at most 256 MB.
 *   weight_offload_gather (string)
 *       a string, one of 'auto', 'on', 'off'; the default is auto. For all programs.
 *       Whether tables of which kernels only look rows up (embeddings) are read in place, in host
 *       memory. 'auto': where a pass takes at most half of the table.
 *   weight_offload_packed_residents (string)
 *       a string, one of 'auto', 'on', 'off'; the default is auto. For GPU programs.
 *       Whether packed weights may stay packed in the budget, decoded at each read. 'auto': where a
 *       pass is shorter with them; 'on': wherever there is room; 'off': what stays is raw.
 *   weight_offload_link_gbps (string)
 *       a positive number of GB/s, at most 1000000, or 'auto'; the default is auto. For GPU
 *       programs.
 *       What the link to the GPU carries, in GB/s of 1,000,000,000 bytes; plans weigh by it what a
 *       copy costs beside its bytes. 'auto' times the link at load.
 *   weight_offload_kernel_times (string)
 *       the path of a file of kernels' times, as a string. For GPU programs.
 *       A file of how long kernels run. If it is there, plans go by it from the first pass on, and
 *       nothing is timed. If not, it is written after the second pass.
 *   weight_offload_device (int)
 *       the index of a GPU, such as 1 or 'cuda:1'; the default is 0. For GPU programs.
 *       The GPU to run on.
 *   weight_offload_verify (string)
 *       a string, one of 'off', 'load', 'every_read'; the default is off. For all programs.
 *       When weights are compared with their checksums: never; at load; or at load and on the
 *       device before each read, which is slow and meant for debugging.
 *   weight_offload_sync (int)
 *       true or false, or 1 or 0; the default is 0. For GPU programs.
 *       Waits for every kernel, so that the error of a fault names only what that kernel had
 *       leased. Slow, for debugging.
 *   weight_offload_cuda_graph (int)
 *       true or false, or 1 or 0; the default is 0. For GPU programs.
 *       Captures the second pass over some shapes as a CUDA graph, copies included, and replays it.
 *       Each set of shapes has its own graph. An error where the host has to take part in a pass.
 *   weight_offload_graph_mb (int)
 *       a number from 1 up, in MB of 1,048,576 bytes, such as 512 or '0.5'; the default is 128. For
 *       GPU programs.
 *       The most device memory that all graphs of a program take beside their activations. Graphs
 *       that were not used for longest go. An error without weight_offload_cuda_graph.
 *   weight_offload_graph_shapes (string)
 *       sizes of dynamic dimensions, as in 'tokens=1,2,4' or 'decode:batch=1,2;prefill:tokens=128',
 *       or 'static'. For GPU programs.
 *       Shapes whose graphs are captured at load, so that the first call over each of them is a
 *       replay. An error without weight_offload_cuda_graph, and where the graphs do not fit into
 *       weight_offload_graph_mb.
 *   weight_offload_method_share (string)
 *       methods and their shares, as in 'decode=0.98,prefill=0.02'. For offloading programs.
 *       How often each method of a program runs beside the others. Plans keep what the frequent
 *       ones read. Without it all methods count the same. Unknown names are errors.
 *   weight_offload_pin (string)
 *       names of weights with * and ?, and commas between, as in 'lm_head.*,layers.0.*'. For
 *       offloading programs.
 *       Weights that always stay on the device, under each policy. They count in the least budget.
 *       A table that would be read in place is loaded. A pattern that matches nothing is an error.
 *   weight_offload_stream (string)
 *       names of weights with * and ?, and commas between, as in 'lm_head.*,layers.0.*'. For
 *       offloading programs.
 *       Weights that never stay: each pass copies them, also where the budget covers them. A table
 *       that is read in place stays in host memory. A pattern that matches nothing is an error.
 *   weight_offload_concurrent (string)
 *       a string, one of 'turns', 'refuse'; the default is turns. For all programs.
 *       What a call does while another method or session of the same program runs: it waits for its
 *       turn, or is refused.
 *   weight_offload_data (string)
 *       the path of the .ptd, as a string. For all programs.
 *       The file of the weights, where the caller's named data is not mapped memory. Functions that
 *       take the path themselves need it not.
 *   weight_offload_pte_sha256 (string)
 *       a SHA-256 as a string of 64 hexadecimal digits (`sha256sum model.pte` prints it). For all
 *       programs.
 *       Refuses a program of another hash. For one load, never a default; ExecuTorch's own Module
 *       never shows the program, so it cannot take this option.
 * An unknown key, a wrong type, and a string of 255 characters or more are errors. Without a budget the
 * least possible one, the floor, is used.
 */
typedef struct ws_option {
  const char* key;
  ws_option_type type;
  /* The value for WS_OPTION_INT, and for WS_OPTION_BOOL (0 or 1). */
  int64_t number;
  /* The value for WS_OPTION_STRING; may be NULL for the other types. */
  const char* text;
} ws_option;

/* Options of a load. */
typedef struct ws_options {
  const ws_option* items; /* may be NULL if count is 0 */
  size_t count;
} ws_options;

/*
 * A flatbuffer program: the bytes of a `.pte`, or its path. Exactly one of the two must be given.
 */
typedef struct ws_program {
  const void* data; /* NULL if path is given */
  size_t size;
  const char* path; /* NULL if data is given */
} ws_program;

/* Where a tensor's data lies, in the numbering of ExecuTorch and PyTorch. */
typedef enum ws_device_type { WS_DEVICE_CPU = 0, WS_DEVICE_CUDA = 1 } ws_device_type;

/*
 * A view of a dense or strided tensor. Zeroes in the last two fields, as an initializer that leaves them out gives,
 * mean host memory.
 */
typedef struct ws_tensor {
  void* data;    /* may be NULL if nbytes is 0 */
  size_t nbytes; /* up to the last element that sizes and strides reach, at least */
  /* ScalarType in the numbering of ExecuTorch and PyTorch: 6 float32, 15 bfloat16, 4 int64, ... */
  int32_t dtype;
  int32_t ndim;
  const int64_t* sizes; /* ndim values; may be NULL if ndim is 0 */
  /* ndim values in elements, or NULL for a contiguous tensor. */
  const int64_t* strides;
  /* ws_device_type. With WS_DEVICE_CUDA `data` is an address in that device's memory. */
  int32_t device_type;
  /* Index of the device, from 0; not looked at for WS_DEVICE_CPU. */
  int32_t device_index;
} ws_tensor;

/*
 * Counters of a model. Set struct_size to sizeof(ws_stats_data) before the call: the library writes
 * no more than that, so that fields can be added at the end.
 */
typedef struct ws_stats_data {
  uint64_t struct_size;
  /* From here to the end scripts/generate writes. */
  /* budget: Device bytes that weights and direct constants may occupy. */
  uint64_t budget_bytes;
  /* budget: The least budget that load accepts. */
  uint64_t floor_bytes;
  /* budget: Below this, some probe could not be served at all. */
  uint64_t hard_minimum_bytes;
  /* budget: Device bytes of direct constants and of pinned weights, which always stay. */
  uint64_t direct_bytes;
  /* budget: Device bytes that all weights would occupy together. Weights that are pinned or only
   * read in place do not count. */
  uint64_t total_weight_bytes;
  /* budget: The most that weights and direct constants occupied at one time under the present
   * budget; never above it. */
  uint64_t peak_bytes;
  /* all passes: Complete passes. */
  uint64_t passes;
  /* all passes: Probes that found their weight on the device, or its copy issued. */
  uint64_t hits;
  /* all passes: Probes that had to wait for a copy issued on demand. */
  uint64_t misses;
  /* all passes: Weights that gave up their device memory. */
  uint64_t evictions;
  /* all passes: Copies issued before their probe. */
  uint64_t prefetches;
  /* all passes: Bytes copied to the device; what load copied counts too. */
  uint64_t bytes_copied;
  /* last pass: Bytes copied to the device. */
  uint64_t bytes_copied_last_pass;
  /* not in the budget: The most bytes of activations at one time, outputs included. What an
   * operator allocates within one call does not count. */
  uint64_t activation_peak_bytes;
  /* not in the budget: The most device memory that one call took for its inputs. 0 on the CPU,
   * which reads them in place. */
  uint64_t io_bytes;
  /* not in the budget: Pinned host memory: a copy of the weights or the staging ring, and 1 MiB for
   * outputs. */
  uint64_t host_pinned_bytes;
  /* not in the budget: Pages of the mapped file that are registered with the device, and so stay in
   * memory. */
  uint64_t host_mapped_bytes;
  /* not in the budget: Tables in host memory that kernels read in place, row by row. */
  uint64_t gathered_bytes;
  /* since load: How often the plan was replaced by a better one: after kernels of a method were
   * timed, and in eager code after entries ran more or less often than before. */
  uint64_t replans;
  /* since load: Inputs that were not row-major, and were copied so that they are. */
  uint64_t inputs_copied;
  /* not in the budget: Device bytes of the mutable buffers of sessions beyond the first, whose
   * state is in the budget. */
  uint64_t session_bytes;
  /* since load: How often the budget was changed after load. */
  uint64_t budget_changes;
  /* budget: Device bytes of the weights that weight_offload_pin keeps. A part of direct_bytes. */
  uint64_t pinned_bytes;
  /* not in the budget: Captured graphs that are kept now. */
  uint64_t graphs;
  /* not in the budget: Device bytes of these graphs: what the driver took for them, in steps of 2
   * MiB or more, or by the number of their nodes where that is more. The driver may keep those of
   * graphs that went, for later ones. Activations are not in it. */
  uint64_t graph_bytes;
  /* since load: Passes that were captured as graphs. */
  uint64_t captures;
  /* since load: Passes that were replayed. */
  uint64_t replays;
  /* since load: Graphs that were given up: for others under weight_offload_graph_mb, after a change
   * of the plan, or for a larger block of activations. */
  uint64_t graphs_evicted;
  /* not in the budget: Device bytes of the block in which inputs and activations of graphs lie. The
   * driver gives it in pages of 2 MiB. */
  uint64_t graph_block_bytes;
  /* since load: Reads of experts' weights that found their row on the device. Counted after 4, 8
   * and 16 passes that read rows, and then after each 16. */
  uint64_t row_hits;
  /* since load: Those that read it in host memory, counted with row_hits. */
  uint64_t row_misses;
  /* since load: Rows of experts' weights that were copied to the device since they were asked for
   * often, or back for methods that read all of them. */
  uint64_t rows_moved;
} ws_stats_data;

/* Levels of log lines. */
typedef enum ws_log_level { WS_LOG_DEBUG = 0, WS_LOG_INFO = 1, WS_LOG_WARN = 2, WS_LOG_ERROR = 3 } ws_log_level;

/* Receives one log line. Called from any thread; `text` is valid during the call only. */
typedef void (*ws_log_fn)(ws_log_level level, const char* text);

/*
 * The version of the library, for example "0.1.0".
 *
 * Memory and lifetimes: a constant string, valid for ever.
 */
const char* ws_version(void);

/*
 * The text of the last failure on the calling thread; empty if there was none. It is a sentence that
 * names the thing, what was expected and what was found.
 *
 * Memory and lifetimes: valid until the next call on the same thread that fails.
 */
const char* ws_last_error(void);

/*
 * Sends the library's log lines to `sink` instead of standard error; NULL restores standard error.
 */
void ws_set_log(ws_log_fn sink);

/*
 * The least budget with which a program can be loaded, in bytes. Loads nothing: the figure is recorded
 * in the program.
 *
 * Parameters:
 *   pte_path: path of the `.pte`.
 *   method:   name of a method, for example "forward"; NULL: of the program. All methods of a program have one budget.
 *   bytes:    receives the figure.
 * Returns: WS_OK; WS_IO, WS_MALFORMED or WS_MISSING (no such method).
 */
ws_status ws_required_budget(const char* pte_path, const char* method, uint64_t* bytes);

/*
 * The same with the weights of `ptd_path`: on a GPU packed weights need memory in which they are decoded. Reads the
 * file's tables, and no weight.
 *
 * Returns: as ws_required_budget; WS_MISMATCH if the two files do not belong together.
 */
ws_status ws_required_budget_with_data(const char* pte_path, const char* ptd_path, const char* method, uint64_t* bytes);

/*
 * Sets defaults of this process, for loads that come later: options that such a load does not give. They are stronger
 * than environment variables (WEIGHTSTREAM_POLICY for weight_offload_policy) and than the program's own defaults. One
 * that cannot apply to a program is left out there, and a log line says so.
 *
 * Parameters:
 *   options: setting an option again replaces its value.
 * Returns: WS_OK; WS_INVALID_OPTION for an unknown key or a wrong value: then none of them is set.
 */
ws_status ws_set_options(const ws_options* options);

/*
 * Loads a method.
 *
 * Parameters:
 *   program:  the flatbuffer program, as bytes or path.
 *   ptd_path: path of the `.ptd` with the weights. It is mapped, not read.
 *   method:   name of the method, for example "forward".
 *   options:  may be NULL: no options.
 *   model:    receives the model.
 * Returns: WS_OK, or the first thing that is wrong with the files, the options or the machine.
 * Memory and lifetimes: the bytes of `program` and the options are not needed after the call. The
 *   files must not be changed while the model lives. End the model with ws_destroy.
 */
ws_status ws_init(const ws_program* program, const char* ptd_path, const char* method, const ws_options* options,
                  ws_model** model);

/*
 * Loads a method that was exported for CUDA, to run on a stream of the caller's. A model of ws_init makes a
 * stream of its own, which waits for no other.
 *
 * Parameters:
 *   stream: a cudaStream_t or CUstream of the primary context (the one that CUDA's runtime library and PyTorch use)
 *           of the device that the option weight_offload_device names. NULL is that device's default stream in its
 *           legacy meaning, which is not the same as giving none. The per-thread default stream is refused: it is
 *           another one on each thread.
 *   others: as for ws_init.
 * Returns: as ws_init; WS_INVALID_INPUT for a stream of another context; WS_UNSUPPORTED if the method was exported
 *   for the CPU.
 * Order: kernels, and copies of inputs and outputs, are issued to the stream; weights arrive on a stream of the
 *   model's own. So inputs and the memory of outputs on the device may still be in use by earlier work on the
 *   stream. When ws_execute or ws_execute_into returns, the stream has done all work of the call.
 * Memory and lifetimes: the stream must exist until ws_destroy has returned, and must not be capturing a graph
 *   during a call. The thread's current context is the same after every call as before it.
 */
ws_status ws_init_on_stream(const ws_program* program, const char* ptd_path, const char* method,
                            const ws_options* options, void* stream, ws_model** model);

/*
 * Loads another method of a program, over the same weights, in the same budget and with the same state as `first`. The
 * `.ptd`, the options and the stream are those of `first`.
 *
 * Parameters:
 *   first:   a model; it may end before the new one.
 *   program: the program that `first` was loaded from.
 *   method:  name of the method; that of `first` is allowed.
 *   model:   receives the model.
 * Returns: as ws_init; WS_MISMATCH if the program is not that of `first`.
 */
ws_status ws_init_method(const ws_model* first, const ws_program* program, const char* method, ws_model** model);

/*
 * The same for a session of its own: with a copy of all buffers that the program's methods write (KV caches), in their
 * initial state. These copies lie outside of the budget (`session_bytes`). Other methods of the new session are loaded
 * with ws_init_method and the new model.
 *
 * Returns: as ws_init_method; WS_OUT_OF_MEMORY, with both numbers, if the device has no room for the state.
 */
ws_status ws_new_session(const ws_model* first, const ws_program* program, const char* method, ws_model** model);

/*
 * Gives the buffers that the program's methods write their initial bytes back: those of the model's session.
 *
 * Returns: WS_OK; WS_BUSY if the model is executing.
 */
ws_status ws_reset_state(const ws_model* model);

/*
 * Another budget for all methods and sessions of the program, from the next pass on. Weights that stay under both
 * budgets are kept where the device can do that; the others are loaded before this returns. A CUDA graph is captured
 * again.
 *
 * Parameters:
 *   bytes: device memory for weights and direct constants.
 * Returns: WS_OK; WS_BUDGET_TOO_SMALL, with the least budget; WS_UNSUPPORTED for a program that was loaded with another
 *   policy than 'planned', or on a device without virtual memory; WS_BUSY if the model is executing. After an error the
 *   budget is what it was.
 */
ws_status ws_set_budget(const ws_model* model, uint64_t bytes);

/*
 * Models that are loaded with weight_offload_budget = "shared" share the memory of their device. This is the most that
 * their weights and direct constants may take together. It holds at once for models that are not executing, and for the
 * others when they have. Before the first call the figure follows what is free on the device, as with
 * WS_DEVICE_BUDGET_AUTO: it sinks at once and rises late.
 *
 * Parameters:
 *   device: "cpu", "cuda:0", "cuda:1" and so on.
 *   bytes:  device memory, or WS_DEVICE_BUDGET_AUTO.
 * Returns: WS_OK; WS_BUDGET_TOO_SMALL, with the least figure, if the least budgets of the loaded models and what
 * executing models hold are more. Then the figure is what it was.
 */
#define WS_DEVICE_BUDGET_AUTO UINT64_MAX
ws_status ws_set_device_budget(const char* device, uint64_t bytes);

/*
 * A model's place in the order of its device: memory of a lower place goes first. Models, offloaded modules and ranges
 * stand in one order. A number, 0 at first, is the priority; of equal ones, the model that was prioritized last comes
 * first, and the one that was deprioritized last comes last. Between models nobody moved the device's rule decides, and
 * models come before ranges. It counts from the next pass of any model, or the next fault of a range.
 *
 * Returns: WS_OK; WS_INVALID_INPUT for a model with a budget of its own.
 */
ws_status ws_set_priority(const ws_model* model, int64_t priority);
ws_status ws_prioritize(const ws_model* model);
ws_status ws_deprioritize(const ws_model* model);

/*
 * Who has what of a device, and why: a JSON object with the budget, the rule that is followed, for each model its
 * floor, its grant, the bytes that it holds and a sentence, and for each range its name and the bytes that it holds.
 * `order` has everybody, and whose memory goes last first.
 * The budget is null where it follows what is free and nothing shares the device yet.
 *
 * Parameters:
 *   device: as for ws_set_device_budget.
 *   json:   receives the text, valid until the next ws_device_report call on the same thread.
 * Returns: WS_OK; WS_INVALID_INPUT for another device.
 */
ws_status ws_device_report(const char* device, const char** json);

/*
 * The name of a method that runs here, in the order of names. Loads nothing.
 *
 * Parameters:
 *   pte_path: path of the `.pte`.
 *   index:    from 0.
 *   name:     receives the name, valid until the next call of this function on the same thread.
 * Returns: WS_OK; WS_MISSING where there are no more.
 */
ws_status ws_method_name(const char* pte_path, size_t index, const char** name);

/*
 * Runs the method once.
 *
 * Parameters:
 *   model:      a loaded model. It executes one call at a time: a second one on another thread returns
 *               WS_BUSY and changes nothing. (ExecuTorch's own Module has no such check: two threads that execute one
 *               crash inside of it.)
 *   inputs:     num_inputs tensors; may be NULL if num_inputs is 0. Strides may be any that are not negative. The
 *               program takes row-major tensors as they are; others are copied once, before it runs, and counted
 *               (`inputs_copied`). One in a device's memory goes through the host then.
 *   outputs:    receives the outputs.
 * Order: inputs and outputs are the tensors among those of the exported method, as ExecuTorch's Module takes and gives
 *   them. None, numbers and strings are part of the program, and have no place in either list. A method without outputs
 *   gives an empty list. A method that computes anything outside of its delegate cannot be loaded here (WS_UNSUPPORTED,
 *   by ws_init).
 * Returns: WS_OK; WS_INVALID_INPUT if count, dtype, rank or extents are not what the program was
 *   exported for; or the failure of the pass. After a failure the model can be used again unless it
 *   answers WS_POISONED; buffers that the method updates (caches) then hold what the pass had written to them.
 * Inputs on the device: for a method that was exported for CUDA, each input may lie in host memory or in memory of
 *   the GPU that the model runs on. There it is used in place, or copied first if its address is no multiple of 16.
 *   The driver is asked about the address: host memory, memory of another device or context, and too few bytes are
 *   WS_INVALID_INPUT. Without a stream of the caller's (ws_init_on_stream) the call begins after the work that was
 *   issued to the device's default stream; work on other streams that makes the inputs must be done.
 * Memory and lifetimes: the inputs are read during the call only, and must stay as they are that long. The outputs
 *   are in host memory, belong to the caller and are independent of the model; end them with ws_outputs_destroy.
 */
ws_status ws_execute(ws_model* model, const ws_tensor* inputs, size_t num_inputs, ws_outputs** outputs);

/*
 * Runs the method once, with its outputs copied to memory of the caller's: on the host or on the device.
 *
 * Parameters:
 *   model, inputs: as for ws_execute.
 *   outputs:       num_outputs tensors, each with the dtype and sizes that the output will have, and memory for it:
 *                  `nbytes` at least as many as it needs. Strides, if given, are dense in some order of dimensions.
 * Returns: as ws_execute; WS_INVALID_INPUT if an output does not fit what was given for it, naming both. Count, dtypes
 *   and ranks are checked before the method runs, sizes and bytes when an output is there; outputs before one that
 *   does not fit are written then.
 * Outputs on the device: the rules for inputs there hold. An output whose elements lie in another order than asked
 *   for goes through the host.
 * Memory and lifetimes: only the call uses the memory of the outputs while it runs; it must not overlap that of
 *   the inputs or of other outputs. The tensors themselves are not changed.
 */
ws_status ws_execute_into(ws_model* model, const ws_tensor* inputs, size_t num_inputs, const ws_tensor* outputs,
                          size_t num_outputs);

/* Number of outputs; 0 if `outputs` is NULL. */
size_t ws_outputs_count(const ws_outputs* outputs);

/*
 * A view of one output.
 *
 * Parameters:
 *   outputs: outputs of an execution.
 *   index:   0 to ws_outputs_count(outputs) - 1.
 *   tensor:  receives the view; the tensor is contiguous.
 * Returns: WS_OK or WS_INVALID_ARGUMENT.
 * Memory and lifetimes: the view's pointers are valid until ws_outputs_destroy.
 */
ws_status ws_outputs_get(const ws_outputs* outputs, size_t index, ws_tensor* tensor);

/* Ends outputs. `outputs` may be NULL. */
void ws_outputs_destroy(ws_outputs* outputs);

/*
 * Counters of a model, from its load on. During an execution on another thread these are the figures
 * from before it.
 *
 * Parameters:
 *   model: a loaded model.
 *   stats: set stats->struct_size = sizeof(*stats) before the call.
 * Returns: WS_OK; WS_INVALID_ARGUMENT if struct_size is not one that any version had.
 */
ws_status ws_stats(const ws_model* model, ws_stats_data* stats);

/*
 * The same counters as a JSON object.
 *
 * Parameters:
 *   model: a loaded model.
 *   json:  receives the text.
 * Returns: WS_OK.
 * Memory and lifetimes: the text is valid until the next ws_stats_json call on the same thread.
 */
ws_status ws_stats_json(const ws_model* model, const char** json);

/*
 * Ends a model. `model` may be NULL. It must not be executing.
 */
void ws_destroy(ws_model* model);

/*
 * Ranges, for code that runs its own kernels: reserved addresses of one model, whose memory comes and goes.
 * docs/ranges.md has the rules and an example. All ranges of a device take memory from each other, newest first and
 * low addresses first, and share the device's budget with models (ws_set_device_budget). Calls may come from any
 * thread.
 *
 * A stream is a CUstream or cudaStream_t of the device's primary context, and NULL is the default stream. It must exist
 * until the leases that were given to it have ended and a call of a range came after. On the CPU it is not looked at.
 */
typedef struct ws_range ws_range;

/* What a fault comes to. */
typedef enum ws_fault_outcome { WS_FAULT_HIT = 0, WS_FAULT_FILL = 1, WS_FAULT_REFUSED = 2 } ws_fault_outcome;

/* Why a fault was refused. Append-only. */
typedef enum ws_refusal {
  /* Something at or below it was evicted: it lies above the range's watermark. ws_range_prioritize resets it. */
  WS_REFUSED_ABOVE_WATERMARK = 0,
  /* The range holds what ws_range_set_limit allows. */
  WS_REFUSED_OVER_LIMIT = 1,
  /* The budget is taken, and nothing of lower priority holds memory. */
  WS_REFUSED_NOTHING_LOWER = 2,
  /* Memory of lower priority is pinned, or kernels still use it. Another time it may work. */
  WS_REFUSED_IN_USE = 3,
  /* Another caller was told to write it, and has not unpinned it. */
  WS_REFUSED_BEING_FILLED = 4,
  /* The device has no memory left, though the budget would allow it. */
  WS_REFUSED_DEVICE_FULL = 5
} ws_refusal;

/* The answer to a fault. */
typedef struct ws_fault {
  int32_t outcome; /* ws_fault_outcome */
  int32_t reason;  /* ws_refusal, if it was refused */
  /* Which contents these are: never 0, and never the same for other contents. 0 if it was refused. */
  uint64_t generation;
  /* The allocation, an address of the device; NULL if it was refused. Writable. */
  void* data;
  uint64_t nbytes;
} ws_fault;

/* What ws_range_free_bytes did, in bytes. */
typedef struct ws_freed {
  uint64_t freed;
  uint64_t pinned;  /* could not go: faults were not unpinned, or tensors live */
  uint64_t pending; /* could not go yet: kernels still use it */
} ws_freed;

#define WS_RANGE_NO_LIMIT UINT64_MAX
#define WS_RANGE_ALL UINT32_MAX

/*
 * A new range, of the highest priority. It costs addresses, and no memory.
 *
 * Parameters:
 *   device: "cpu", "cuda:0", "cuda:1" and so on.
 *   name:   for reports and messages.
 *   bytes:  how much will be allocated; each allocation takes a multiple of 256. Rounded up to whole pages.
 *   range:  receives the range.
 * Returns: WS_OK; WS_INVALID_INPUT for another device; WS_UNSUPPORTED without virtual memory; WS_OUT_OF_MEMORY without
 * addresses.
 * Memory and lifetimes: the caller ends it with ws_range_destroy.
 */
ws_status ws_range_create(const char* device, const char* name, uint64_t bytes, ws_range** range);

/*
 * The next bytes of a range, from low addresses up. Costs no memory. Allocate what matters most first: low addresses
 * stay longest.
 *
 * Returns: WS_OK; WS_OUT_OF_MEMORY, with what is left, beyond the range's size.
 */
ws_status ws_range_alloc(const ws_range* range, uint64_t bytes, uint32_t* alloc);

/*
 * Asks for the contents of an allocation. It never waits. On a hit by the stream that wrote the contents it calls no
 * driver.
 *
 * Parameters:
 *   stream: what will use the memory. What is issued to it after this call comes after the write of the contents.
 *   fault:  receives the answer:
 *     WS_FAULT_HIT: the contents are there.
 *     WS_FAULT_FILL: write them on `stream`, before ws_range_unpin. If that fails, call ws_range_invalidate first.
 *     WS_FAULT_REFUSED: use ws_range_slot, or memory of your own. Do not unpin.
 * Returns: WS_OK, also if it was refused; WS_DEVICE.
 */
ws_status ws_range_fault(const ws_range* range, uint32_t alloc, void* stream, ws_fault* fault);

/*
 * The same for `count` allocations, one after the other. `faults` is written after an error too: what was answered has
 * its answer, to be unpinned as always, and the rest is WS_FAULT_REFUSED.
 */
ws_status ws_range_fault_many(const ws_range* range, const uint32_t* allocs, size_t count, void* stream,
                              ws_fault* faults);

/*
 * What was issued to `stream` so far uses these allocations, and nothing later: the end of as many faults. Records one
 * event; memory is taken only once it is complete. Kernels on other streams are the caller's to order before `stream`.
 *
 * Returns: WS_OK; WS_INVALID_INPUT for an allocation without an open fault, or a stream that is being captured.
 */
ws_status ws_range_unpin(const ws_range* range, const uint32_t* allocs, size_t count, void* stream);

/*
 * Gives a range a ring, for allocations whose fault was refused, in the place of the one that it had. The memory is
 * taken now: other pages of ranges make room, and their kernels are waited for. It counts in the device's budget, and
 * not in the limit of the range.
 *
 * Parameters:
 *   bytes: rounded up to whole units, of 32 MB on a GPU and 1 MB on the CPU. 0 for no ring.
 * Returns: WS_OK; WS_INVALID_INPUT while a slot is leased, and the ring stays; WS_OUT_OF_MEMORY if the budget has no
 * room, and then the range has no ring.
 */
ws_status ws_range_set_ring(const ws_range* range, uint64_t bytes);

/*
 * Memory of the ring for an allocation whose fault was refused. Slots are given in ring order, and never wait: what is
 * issued to `stream` after this call comes after the kernels that used these bytes before.
 *
 * Parameters:
 *   stream: what fills the slot.
 *   slot:   receives a number that ws_range_unpin, ws_range_tensor and ws_range_used_on take as that of an allocation.
 *           The slot is leased until ws_range_unpin and until its tensors are gone.
 *   fault:  receives WS_FAULT_FILL: write the contents on `stream`, before ws_range_unpin.
 * Returns: WS_OK; WS_INVALID_INPUT without a ring, or if the allocation is larger than the ring; WS_OUT_OF_MEMORY, with
 * the allocations whose slots are leased, if no gap between them is large enough.
 */
ws_status ws_range_slot(const ws_range* range, uint32_t alloc, void* stream, uint32_t* slot, ws_fault* fault);

/* DLPack's structure, of dlpack.h, version 0. */
struct DLManagedTensor;

/*
 * A contiguous tensor over an allocation that is faulted or resident. It keeps the memory until its deleter is called,
 * on any thread: that marks the end only. The next call of any range of the device records an event on `stream` and on
 * the streams of ws_range_used_on, and the memory stays until they are complete.
 *
 * Parameters:
 *   dtype:  ScalarType, as in ws_tensor.
 *   sizes:  `ndim` values; may be NULL if ndim is 0.
 *   tensor: receives the tensor.
 * Returns: WS_OK; WS_INVALID_INPUT if nothing is resident there, or the tensor does not fit.
 * Memory and lifetimes: the caller calls the tensor's deleter, or gives it to who does.
 */
ws_status ws_range_tensor(const ws_range* range, uint32_t alloc, int32_t dtype, const int64_t* sizes, size_t ndim,
                          void* stream, struct DLManagedTensor** tensor);

/*
 * Tensors of the allocation that live are used on this stream too. Use on a stream that nobody named is the caller's
 * error: torch's record_stream does nothing for memory that torch did not allocate.
 */
ws_status ws_range_used_on(const ws_range* range, uint32_t alloc, void* stream);

/*
 * The range's place in the order of its device, as ws_set_priority has it for models. A range that comes first has its
 * watermark reset, and so has one that gets a number: nothing is refused because of earlier evictions. A fault takes
 * memory from ranges and idle models of lower places.
 */
ws_status ws_range_set_priority(const ws_range* range, int64_t priority);
ws_status ws_range_prioritize(const ws_range* range);
ws_status ws_range_deprioritize(const ws_range* range);

/*
 * Frees `bytes` of a range, high addresses first, and says what it did and what kept the rest.
 *
 * Parameters:
 *   wait:  not 0: waits for kernels that still use the memory.
 *   freed: receives what was done.
 */
ws_status ws_range_free_bytes(const ws_range* range, uint64_t bytes, int32_t wait, ws_freed* freed);

/*
 * The most that a range may hold, or WS_RANGE_NO_LIMIT. What it holds above is freed, after its kernels.
 */
ws_status ws_range_set_limit(const ws_range* range, uint64_t bytes);

/*
 * The contents of an allocation, or of all with WS_RANGE_ALL, are worth nothing any more: the next fault has them
 * written.
 */
ws_status ws_range_invalidate(const ws_range* range, uint32_t alloc);

/*
 * Up to where faults of a range take memory, and why: an empty text while nothing was evicted.
 *
 * Memory and lifetimes: the text is valid until the next ws_range_watermark, ws_range_why, ws_range_residency or
 *   ws_graph_pool_report on the same thread.
 */
ws_status ws_range_watermark(const ws_range* range, uint64_t* bytes, const char** why);

/*
 * Why a fault of this range was refused, in a sentence: with the budget of the device and who holds how much of it now,
 * where that is the reason.
 *
 * Parameters:
 *   reason: that of the refused ws_fault.
 * Returns: WS_OK; WS_INVALID_ARGUMENT for a number that is no ws_refusal.
 * Memory and lifetimes: as for ws_range_watermark.
 */
ws_status ws_range_why(const ws_range* range, int32_t reason, const char** why);

/*
 * What a range holds, unit by unit, and what happened to it, as a JSON object.
 *
 * Memory and lifetimes: as for ws_range_watermark.
 */
ws_status ws_range_residency(const ws_range* range, const char** json);

/*
 * Ends a range: memory and addresses go back, after its kernels. `range` may be NULL.
 *
 * Returns: WS_OK; WS_INVALID_INPUT while a fault or a tensor of it is open. Then the range is still there.
 */
ws_status ws_range_destroy(ws_range* range);

/*
 * Graph pools: memory for captures of graphs that the caller makes, of which one replays at a time. Each capture has
 * its own addresses, and all captures show the same memory: as much as the largest of them needs. What a replay has
 * written is valid until the next replay of any capture of the pool. docs/graph-pools.md has the rules. Calls may
 * come from any thread; streams are those of ranges. Replays are issued one at a time.
 */
typedef struct ws_graph_pool ws_graph_pool;

#define WS_GRAPH_POOL_NO_CAP UINT64_MAX

/*
 * A new pool. It costs addresses, and no memory. Its memory counts in the device's budget, as that of ranges does.
 *
 * Parameters:
 *   device:    "cpu", "cuda:0", "cuda:1" and so on.
 *   name:      for reports and messages.
 *   cap_bytes: the most that a capture may take; WS_GRAPH_POOL_NO_CAP for what is free on the device now.
 *   pool:      receives the pool.
 * Returns: WS_OK; the errors of ws_range_create.
 * Memory and lifetimes: the caller ends it with ws_graph_pool_destroy.
 */
ws_status ws_graph_pool_create(const char* device, const char* name, uint64_t cap_bytes, ws_graph_pool** pool);

/*
 * A capture begins: until ws_graph_pool_end, ws_graph_pool_alloc gives memory of this pool for its device.
 *
 * Parameters:
 *   capture: receives the capture's number, which is used once.
 * Returns: WS_OK; WS_INVALID_INPUT while a capture of any pool of the device runs.
 */
ws_status ws_graph_pool_begin(const ws_graph_pool* pool, uint64_t* capture);

/*
 * A capture that has ended goes on until the next ws_graph_pool_end: what it gets now lies behind what it has. For
 * pieces of one pass with other work between, which are replayed in this order.
 *
 * Returns: WS_OK; WS_INVALID_INPUT while a capture of any pool of the device runs, or for one that was released.
 */
ws_status ws_graph_pool_resume(const ws_graph_pool* pool, uint64_t capture);

/*
 * The capture that runs is over.
 *
 * Parameters:
 *   keep: not 0 if it can be replayed. 0 if it failed: its addresses go once all its memory was freed, and so does
 *         memory that no other capture needs. One that was resumed stays what it was before.
 */
ws_status ws_graph_pool_end(const ws_graph_pool* pool, int32_t keep);

/*
 * Called before each replay: what is issued to `stream` afterwards comes after all replays of the pool, and after what
 * else was issued to the stream of the last replay so far. It never blocks, and calls no driver while the stream is the
 * same.
 *
 * Parameters:
 *   stream: where the replay is issued. It exists until the next call with another stream, or the capture's release.
 */
ws_status ws_graph_pool_enter(const ws_graph_pool* pool, uint64_t capture, void* stream);

/*
 * The capture is replayed no more. Waits for replays. Its addresses go once all its memory was freed, which is looked
 * at in this call, and in later calls of ws_graph_pool_begin, _end, _release and _destroy.
 */
ws_status ws_graph_pool_release(const ws_graph_pool* pool, uint64_t capture);

/*
 * What a pool holds, as a JSON object: bytes, cap_bytes, captures, and why the last capture got no memory.
 *
 * Memory and lifetimes: as for ws_range_watermark.
 */
ws_status ws_graph_pool_report(const ws_graph_pool* pool, const char** json);

/*
 * Ends a pool. `pool` may be NULL.
 *
 * Returns: WS_OK; WS_INVALID_INPUT while a capture was not released, or memory of one was not freed. Then the pool is
 * still there.
 */
ws_status ws_graph_pool_destroy(ws_graph_pool* pool);

/*
 * Callbacks for an allocator that asks for memory by size, device and stream, as PyTorch's pluggable allocators do. Of
 * the capture that runs on the device: NULL is out of memory, and ws_graph_pool_report says why. The stream is not
 * used. Freed memory goes with its capture: the graph still uses it. `device` is a number of a GPU, or -1 for the CPU.
 */
void* ws_graph_pool_alloc(ptrdiff_t size, int device, void* stream);
void ws_graph_pool_free(void* at, ptrdiff_t size, int device, void* stream);

/*
 * The same for memory outside of captures: each call takes memory under the device's budget, and weights make room for
 * it: those of ranges and of idle models, the lowest priority first, then those of passes that may give way
 * (ws_offload_needs). It waits for kernels that use these. Freed memory goes back at once, after what was issued to
 * `stream`, which is waited for. Weights that went come back with ws_range_prioritize, once there is room.
 */
void* ws_segment_alloc(ptrdiff_t size, int device, void* stream);
void ws_segment_free(void* at, ptrdiff_t size, int device, void* stream);

/* Bytes that segments of a device hold now, in whole units. */
uint64_t ws_segment_bytes(int device);

/*
 * Weights of a module that its owner runs call by call, as eager PyTorch does, on the planner's layout. The owner calls
 * the module, or parts of it: its entries. Of each it records one pass: which weights each call reads, in which order.
 * From then on a pass of an entry is
 *
 *   ws_offload_begin, then for each call ws_offload_read, its kernels, ws_offload_release, and at last ws_offload_end.
 *
 * Entries have the numbers 0, 1, 2 and so on, in the order in which they came. They share weights and budget.
 * docs/eager.md describes the same in Python. One pass at a time, of any entry; calls may come from any thread.
 */
typedef struct ws_offload ws_offload;

/* A copy of a weight's bytes in host memory, in the lossless code of docs/export.md (packed weights). */
typedef struct ws_packed ws_packed;

/*
 * Packs `nbytes` bytes of numbers, on this thread: several may do so at once. Each block is decoded and compared as it
 * is coded.
 *
 * Parameters:
 *   name:   the weight's, for messages.
 *   dtype:  of the numbers, ScalarType, as in ws_tensor.
 *   data:   read during the call only.
 *   packed: receives the copy, or NULL if it would gain less than 5 %, as with all but floating-point numbers of one,
 *           two or four bytes.
 * Returns: WS_OK; WS_INVALID_ARGUMENT, also for an unknown dtype; WS_OUT_OF_MEMORY.
 */
ws_status ws_packed_create(const char* name, int32_t dtype, const void* data, uint64_t nbytes, ws_packed** packed);

/*
 * A copy that was packed before, whose stored bytes and exponents were kept, in a file for example. It is decoded on
 * this thread and compared with the weight: several threads may do so at once.
 *
 * Parameters:
 *   name, dtype, data: as in ws_packed_create.
 *   stored:    not copied: as long as the copy lives they must stay as they are.
 *   exponents: 13 of them.
 *   packed:    receives the copy.
 * Returns: WS_OK; WS_INVALID_ARGUMENT; WS_MALFORMED, or WS_MISMATCH if other bytes than `data` come of it.
 */
ws_status ws_packed_read(const char* name, int32_t dtype, const void* data, uint64_t nbytes, const void* stored,
                         uint64_t stored_nbytes, const uint8_t* exponents, ws_packed** packed);

/* The stored bytes of a copy, ws_packed_stored_bytes of them, which stay as long as it lives; and its 13 exponents. */
ws_status ws_packed_parts(const ws_packed* packed, const void** stored, uint8_t* exponents);

/* Bytes of host memory that a copy takes; of NULL, 0. */
uint64_t ws_packed_stored_bytes(const ws_packed* packed);

/* Ends a copy; NULL is allowed. What was made with it has ended before. */
void ws_packed_destroy(ws_packed* packed);

/*
 * One weight: its name, for messages, its bytes on the host, and NULL or a packed copy of them. With a copy it is
 * brought in fewer bytes and decoded on the way, and is not read in place. The copy lives until ws_offload_destroy.
 * Bytes that change have no copy from then on: end the offload, and create another one.
 */
typedef struct ws_offload_weight {
  const char* name;
  const void* data;
  uint64_t nbytes;
  const ws_packed* packed;
} ws_offload_weight;

/* What happens in a pass. A kernel reads every weight whose read has begun and has not ended. */
typedef enum ws_offload_event_kind {
  WS_OFFLOAD_READ = 0,
  WS_OFFLOAD_KERNEL = 1,
  WS_OFFLOAD_READ_END = 2
} ws_offload_event_kind;

/* One event, in the order of a pass: a ws_offload_event_kind, and the number of its read; of a kernel, any number. */
typedef struct ws_offload_event {
  int32_t kind;
  uint32_t index;
} ws_offload_event;

/* As a budget: the least that does. */
#define WS_OFFLOAD_FLOOR UINT64_MAX
/* As a budget: the device's, with all models that share it (ws_set_device_budget). */
#define WS_OFFLOAD_SHARED (UINT64_MAX - 1)

/* One order of reads: what calls of one entry do. */
typedef struct ws_offload_entry {
  /* The weight of each read. Reads have the numbers 0, 1, 2 and so on, in the order of a pass of this entry. */
  const uint32_t* reads;
  size_t num_reads;
  const ws_offload_event* events;
  size_t num_events;
  /* Reads that take some rows of a table, ascending: read in place, in host memory, unless everything stays. */
  const uint32_t* rows;
  size_t num_rows;
} ws_offload_entry;

/* A file that weights lie in, which the caller has mapped as a whole. */
typedef struct ws_offload_file {
  const char* path;
  const void* data;
  uint64_t nbytes;
} ws_offload_file;

/* The first entry, and what is wanted. */
typedef struct ws_offload_recorded {
  /* "cpu", "cuda:0" and so on; the module's name in messages and reports. */
  const char* device;
  const char* name;
  /* A CUstream or cudaStream_t of the device's primary context, on which all kernels read; NULL: the default one. */
  void* stream;
  /* Those of all entries, each once. */
  const ws_offload_weight* weights;
  size_t num_weights;
  ws_offload_entry entry;
  /* Bytes on the device, WS_OFFLOAD_FLOOR or WS_OFFLOAD_SHARED; and how many of them the caller holds itself. */
  uint64_t budget;
  uint64_t beside;
  /* With WS_OFFLOAD_SHARED: whose bytes come first. */
  int64_t priority;
  /* Files that some of the weights lie in, each once; weights whose bytes are of no file's mapping lie in memory. */
  const ws_offload_file* files;
  size_t num_files;
  /* How weights of files are held on the host: weight_offload_host and weight_offload_staging_mb, and no others. NULL:
     'auto'. Staged files are read, not their mappings, and tables in them are not read in place. */
  const ws_options* options;
} ws_offload_recorded;

/* A pass that has begun. */
typedef struct ws_offload_pass {
  /* Another one than in the pass before: weights lie elsewhere. */
  uint64_t generation;
  /* Not 0: everything stays. ws_offload_addresses says where, and the pass calls neither ws_offload_read nor
     ws_offload_release. */
  int32_t resident;
} ws_offload_pass;

/*
 * Plans, takes memory, and loads what stays.
 *
 * Parameters:
 *   recorded: what was recorded; read during the call only, but for the bytes of weights and the stream.
 *   offload:  receives the handle.
 * Returns: WS_OK; WS_BUDGET_TOO_SMALL with the least budget in the message; WS_MALFORMED if the events are no pass;
 *   WS_UNSUPPORTED on a device that maps no memory; WS_INVALID_OPTION for an option that can have no effect; WS_IO for
 *   a file that is not there or has another size.
 * Memory and lifetimes: the bytes of weights and of files must stay readable and unchanged until ws_offload_destroy,
 *   and the stream must exist. On a GPU they are registered with the driver where they lie; the mappings of files as a
 *   whole, read-only, unless the options say otherwise.
 */
ws_status ws_offload_create(const ws_offload_recorded* recorded, ws_offload** offload);

/*
 * One more entry, between passes. All weights move to the plan for all entries; what stays is not copied again.
 *
 * Parameters:
 *   entry: read during the call only.
 *   index: receives its number.
 * Returns: WS_OK; WS_BUDGET_TOO_SMALL with the least budget in the message, if the budget is a number of bytes or the
 *   device's and does not do for this entry; WS_OUT_OF_MEMORY if others that share the device hold what is missing now;
 *   WS_MALFORMED if the events are no pass; WS_BUSY while a pass runs. After an error everything is as it was, and
 *   passes of all other entries go on. With WS_OFFLOAD_FLOOR the budget follows the least one.
 */
ws_status ws_offload_add_entry(const ws_offload* offload, const ws_offload_entry* entry, uint32_t* index);

/* Another order in the place of that of entry `index`, as ws_offload_add_entry. */
ws_status ws_offload_replace_entry(const ws_offload* offload, uint32_t index, const ws_offload_entry* entry);

/* What a pass needs beside its weights. It counts with WS_OFFLOAD_SHARED. */
typedef struct ws_offload_needs {
  /* Bytes that are to be left for it in the device's budget, as far as its least budget allows. */
  uint64_t room;
  /* Not 0: the pass gives memory away where ws_segment_alloc or a graph pool needs it, if it asks for its reads. */
  int32_t gives_way;
  /* Not 0: the pass asks for its reads, also where everything stays. */
  int32_t by_reads;
} ws_offload_needs;

/*
 * A pass of an entry begins. `needs` may be NULL: nothing.
 *
 * Returns: WS_OK; WS_BUSY while another one runs; WS_INVALID_INPUT for an unknown entry.
 */
ws_status ws_offload_begin(const ws_offload* offload, uint32_t entry, const ws_offload_needs* needs,
                           ws_offload_pass* pass);

/*
 * What a read has found: the weights where they were before; the weights, and one of them at another address; or
 * nothing, since memory was needed and the weights of this pass gave way. Then no read begins any more. What is leased
 * stays until its release. The caller reads the host's bytes, and ends the pass; the weights are back in the next one.
 */
typedef enum ws_found { WS_FOUND_SAME = 0, WS_FOUND_MOVED = 1, WS_FOUND_NOTHING = 2 } ws_found;

/*
 * The next reads of the pass.
 *
 * Parameters:
 *   first, count: their numbers.
 *   addresses:    `count` addresses, of which those that have changed are written. Kernels that are issued
 *                 to the stream from now on find the weights there. They only read.
 *   found:        receives a ws_found.
 * Returns: WS_OK; WS_DIVERGENCE if other reads come next. After an error none of them has begun, and the pass has to
 *   be ended with `completed` = 0.
 */
ws_status ws_offload_read(const ws_offload* offload, uint32_t first, uint32_t count, uint64_t* addresses,
                          int32_t* found);

/* The end of as many reads: what was issued to the stream so far uses these weights, and nothing later does. */
ws_status ws_offload_release(const ws_offload* offload, uint32_t first, uint32_t count);

/*
 * The pass is over. `completed` is 0 if it did not go as recorded, or failed; the next one starts afresh then.
 *
 * Returns: WS_OK; WS_DIVERGENCE if it was said to be complete and is not.
 */
ws_status ws_offload_end(const ws_offload* offload, int32_t completed);

/*
 * Where each of the `count` reads of a pass of this entry finds its weight, until a pass begins with another
 * generation.
 *
 * Returns: WS_OK; WS_INVALID_INPUT unless everything stays.
 */
ws_status ws_offload_addresses(const ws_offload* offload, uint32_t entry, uint64_t* addresses, size_t count);

/*
 * Another budget, from the next pass on. Entries that join later must do with it, also after WS_OFFLOAD_FLOOR.
 *
 * Returns: WS_OK; WS_BUDGET_TOO_SMALL; WS_BUSY while a pass runs; WS_INVALID_INPUT after WS_OFFLOAD_SHARED.
 */
ws_status ws_offload_set_budget(const ws_offload* offload, uint64_t bytes);

/*
 * The module's place in the order of its device, as ws_set_priority has it for models.
 *
 * Returns: WS_OK; WS_INVALID_INPUT without WS_OFFLOAD_SHARED.
 */
ws_status ws_offload_set_priority(const ws_offload* offload, int64_t priority);
ws_status ws_offload_prioritize(const ws_offload* offload);
ws_status ws_offload_deprioritize(const ws_offload* offload);

/*
 * The same for who ends an offload and creates another one in its place: a priority, and the turn that the module took
 * when it was put first, or that turn with a minus where it was put last; 0 if it never was. A later turn comes first.
 */
int64_t ws_next_turn(void);
ws_status ws_offload_set_place(const ws_offload* offload, int64_t priority, int64_t turn);

/*
 * The bytes of these weights on the host have changed, and lie where they did: what the device has of them is copied
 * again, before this returns. Addresses on the device stay. Write them between passes only.
 *
 * Parameters:
 *   weights: `count` places in the array that ws_offload_create took.
 * Returns: WS_OK; WS_BUSY while a pass runs; WS_INVALID_INPUT for a weight that has a packed copy.
 */
ws_status ws_offload_copy_again(const ws_offload* offload, const uint32_t* weights, size_t count);

/*
 * The counters of ws_stats as a JSON object, and those of each entry, in the order of their numbers, as "entries":
 *   [{"passes": 3, "bytes_copied": 4096}, ...]: complete passes, and what passes copied.
 *
 * Memory and lifetimes: the text is valid until the next ws_offload_stats on the same thread.
 */
ws_status ws_offload_stats(const ws_offload* offload, const char** json);

/* Gives memory back, after the kernels that read it. `offload` may be NULL. No pass of it may be running. */
void ws_offload_destroy(ws_offload* offload);

#ifdef __cplusplus
}
#endif

#endif /* WEIGHTSTREAM_WEIGHTSTREAM_H_ */
