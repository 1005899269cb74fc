/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of ckptfs._native share. Each includes Python.h itself, with
 * the stable ABI chosen by the build.
 */
#ifndef CKPT_PYTHON_NATIVE_H
#define CKPT_PYTHON_NATIVE_H

struct _object; /* PyObject */

/* native_read.c: add the reading side to the module. 0, or -1 and raised. */
int native_read_add(struct _object *module);

#endif
