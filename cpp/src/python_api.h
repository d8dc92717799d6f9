/*
 * weightstream::Module as plain functions, for bindings from other languages (weightstream/_run/runtime.py).
 * Not installed and not stable: binding and library are released together. For programs in C see
 * weightstream.h.
 *
 * Functions that can fail return 0 for success and an ExecuTorch error code otherwise, or NULL; the text
 * is ws_last_error(). A handle is for one thread at a time; a second wsm_execute while one runs fails.
 */
#pragma once

#include "weightstream/weightstream.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct wsm_module wsm_module;

typedef enum wsm_kind {
  WSM_TENSOR = 0,
  WSM_NONE = 1,
  WSM_INT = 2,
  WSM_DOUBLE = 3,
  WSM_BOOL = 4,
  WSM_STRING = 5
} wsm_kind;

/* An input or an output of a method: a tensor, or a value that is part of the program. */
typedef struct wsm_value {
  int32_t kind;     /* wsm_kind; only the fields of that kind are looked at */
  int64_t integer;  /* of an int or a bool */
  double number;    /* of a double */
  const char* text; /* of a string: `length` bytes */
  size_t length;
  ws_tensor tensor;
} wsm_value;

/* Opens a program and its weights. The options are checked when a method is loaded. NULL on failure. */
wsm_module* wsm_open(const char* pte_path, const char* ptd_path, const ws_option* options, size_t num_options);

/*
 * Runs the command `weightstream` with these arguments. Returns its text, for standard output or, if `status` is not 0,
 * for standard error; valid until the next call on this thread. NULL if the library has no command.
 */
const char* wsm_command(const char* const* arguments, size_t count, int32_t* status);

/* Whether these options can be defaults of a program. */
int32_t wsm_check_defaults(const ws_option* options, size_t num_options);

/* Loads a method. */
int32_t wsm_load_method(wsm_module* module, const char* method);

/* An input of a method as callers in Python name it. */
typedef struct wsm_call_input {
  const char* name;     /* `x`, `state[0]`, `cache['k']` */
  int64_t place;        /* of its argument; -1: it is a keyword */
  const char* constant; /* the value that is part of the program, as Python writes it; empty: a tensor */
} wsm_call_input;

/*
 * The inputs of a method in its order, valid until the next call on this thread: `count` of them, none if its exporter
 * did not record their names.
 */
int32_t wsm_call_inputs(const char* pte_path, const char* method, const wsm_call_input** inputs, size_t* count);

/* Runs a method. Its outputs stay in the handle until the next call of this function. */
int32_t wsm_execute(wsm_module* module, const char* method, const wsm_value* inputs, size_t num_inputs);

/* Number of outputs of the last execution. */
size_t wsm_num_outputs(const wsm_module* module);

/* An output of the last execution; views of tensors and strings are valid until the next one. */
int32_t wsm_output(const wsm_module* module, size_t index, wsm_value* output);

/* Counters of a loaded method as JSON, valid until the next call of this function on the handle; NULL if
 * the method is not loaded. */
const char* wsm_stats_json(wsm_module* module, const char* method);

/* A session: a handle over the same weights with a state of its own; NULL on failure. End it with wsm_close. */
wsm_module* wsm_new_session(wsm_module* module);

/* Gives the buffers that the methods write their initial bytes back: those of this session. */
int32_t wsm_reset_state(wsm_module* module);

/* Another budget from the next pass on, in bytes. */
int32_t wsm_set_budget(wsm_module* module, uint64_t bytes);

/* Another place in the order of the device: 0 for this priority, 1 for the first of its own, 2 for the last. */
int32_t wsm_reorder(wsm_module* module, int32_t to, int64_t priority);

/* Ends a handle; NULL is allowed. */
void wsm_close(wsm_module* module);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
