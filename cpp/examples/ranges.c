/*
 * Two models in turn under one budget, by faults, in C without PyTorch.
 *
 *     ranges
 *
 * A "model" is a list of weights in host memory; its "pass" adds up all numbers. Each weight is faulted before its use
 * and unpinned after it. A hit is used as it is, a fill is written first, and for a refused fault the weight in host
 * memory is used. On a GPU the memcpy is a copy on the fault's stream, the sum is a kernel there, and a refused weight
 * goes to memory of your own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weightstream/weightstream.h"

enum { LAYERS = 12, NUMBERS = 1 << 18, PASSES = 4 };
#define WEIGHT_BYTES ((uint64_t)NUMBERS * sizeof(float))
#define MB (1024.0 * 1024.0)

typedef struct model {
  const char* name;
  float* host[LAYERS];
  ws_range* range;
  uint32_t allocs[LAYERS];
  uint64_t copied;
  int refused;
} model;

static void check(ws_status status, const char* what) {
  if (status == WS_OK) return;
  fprintf(stderr, "%s: %s\n", what, ws_last_error());
  exit(1);
}

static void* memory(size_t bytes) {
  void* found = malloc(bytes);
  if (found == NULL) {
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
  }
  return found;
}

static void create(model* m, const char* name) {
  memset(m, 0, sizeof *m);
  m->name = name;
  check(ws_range_create("cpu", name, LAYERS * WEIGHT_BYTES, &m->range), "ws_range_create");
  for (int layer = 0; layer < LAYERS; ++layer) {
    m->host[layer] = memory(WEIGHT_BYTES);
    for (int i = 0; i < NUMBERS; ++i) m->host[layer][i] = (float)((i + layer) % 8);
    check(ws_range_alloc(m->range, WEIGHT_BYTES, &m->allocs[layer]), "ws_range_alloc");
  }
}

static double add_up(const float* weight) {
  double sum = 0;
  for (int i = 0; i < NUMBERS; ++i) sum += weight[i];
  return sum;
}

static double pass(model* m) {
  double sum = 0;
  for (int layer = 0; layer < LAYERS; ++layer) {
    ws_fault fault;
    check(ws_range_fault(m->range, m->allocs[layer], NULL, &fault), "ws_range_fault");
    if (fault.outcome == WS_FAULT_REFUSED) {
      m->refused += 1;
      sum += add_up(m->host[layer]);
      continue;
    }
    if (fault.outcome == WS_FAULT_FILL) {
      memcpy(fault.data, m->host[layer], WEIGHT_BYTES);
      m->copied += WEIGHT_BYTES;
    }
    sum += add_up(fault.data);
    check(ws_range_unpin(m->range, &m->allocs[layer], 1, NULL), "ws_range_unpin");
  }
  return sum;
}

static int play(model* m, const char* phase) {
  double expected = 0;
  for (int layer = 0; layer < LAYERS; ++layer) expected += add_up(m->host[layer]);
  m->copied = 0;
  m->refused = 0;
  int right = 1;
  for (int i = 0; i < PASSES; ++i) right = right && pass(m) == expected;
  printf("%-22s %-6s %8.1f %8d   %s\n", phase, m->name, (double)m->copied / MB, m->refused, right ? "right" : "WRONG");
  return right;
}

static void destroy(model* m) {
  check(ws_range_destroy(m->range), "ws_range_destroy");
  for (int layer = 0; layer < LAYERS; ++layer) free(m->host[layer]);
}

int main(void) {
  model a, b;
  /* One and a half of the two models. */
  check(ws_set_device_budget("cpu", 3 * LAYERS * WEIGHT_BYTES / 2), "ws_set_device_budget");
  create(&a, "a");
  create(&b, "b");
  printf("%d passes each; MB copied, faults refused\n", PASSES);
  int right = play(&b, "b is the newest");
  right = play(&a, "a gets what is left") && right;
  check(ws_range_prioritize(a.range), "ws_range_prioritize");
  right = play(&a, "a comes first") && right;
  right = play(&b, "b gets what is left") && right;
  uint64_t bytes = 0;
  const char* why = NULL;
  check(ws_range_watermark(b.range, &bytes, &why), "ws_range_watermark");
  printf("watermark of b: %.1f MB: %s\n", (double)bytes / MB, why);
  destroy(&a);
  destroy(&b);
  return right ? 0 : 1;
}
