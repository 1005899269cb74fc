/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of tensors as names of files: "layer.0/weight" is
 * "layer.0%2Fweight.npy". '/', '%' and control characters are written as %XX;
 * a name that would be longer than 255 bytes is cut and ends in "%~", 16 hex
 * digits (FNV-1a of the whole name) and ".npy". "%~" comes of no other name, so
 * a file name never stands for two tensors (but if their hashes are equal: it
 * is the first one then).
 *
 * Threads: any.
 */
#ifndef CKPT_FS_TENSOR_NAME_H
#define CKPT_FS_TENSOR_NAME_H

#include "metadata/metadata.h"
#include "providers/reader_table.h"

#define TENSOR_FILE_SUFFIX ".npy"

/* The file name of a tensor. */
void tensor_file_name(const char *name, char out[META_NAME_MAX + 1]);
/* Is it known what it is? (A shard may be missing.) */
bool tensor_is_shown(const struct tensor *t);
/* The tensor of that file name; NULL: none, or none that is shown. */
const struct tensor *tensor_of_file_name(const struct tensor_table *table,
					 const char *file);

#endif
