/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formats: one declaration here and one line in the table of reader.c each.
 * For reader*.c and the fuzzers; others ask reader.h.
 */
#ifndef CKPT_PROVIDERS_READER_FORMATS_H
#define CKPT_PROVIDERS_READER_FORMATS_H

#include "providers/reader.h"

extern const struct reader_ops reader_safetensors;
extern const struct reader_ops reader_npy;
extern const struct reader_ops reader_gguf;
extern const struct reader_ops reader_torch;
extern const struct reader_ops reader_npz;
extern const struct reader_ops reader_dcp;
extern const struct reader_ops reader_index;

/* All of them in the order in which they are asked; NULL ends it. */
extern const struct reader_ops *const reader_formats[];

#endif
