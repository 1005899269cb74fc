/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a .npy file or stream (numpy.lib.format 1.0, 2.0, 3.0). For the
 * formats that have .npy within, and for the gather. No state.
 */
#ifndef CKPT_PROVIDERS_READER_NPY_H
#define CKPT_PROVIDERS_READER_NPY_H

#include "providers/reader.h"

#define NPY_PREFIX_LEN 12         /* tells the length of the header */
#define NPY_HEADER_MAX (64 << 10) /* of all of it, prefix included */

struct npy_header {
	enum tensor_type type;
	bool swapped;
	size_t len;        /* of the header: where the data begin */
	uint64_t data_len; /* bytes of all elements */
	unsigned n_dims;
	uint64_t shape[TENSOR_DIMS_MAX];
	uint64_t stride[TENSOR_DIMS_MAX]; /* elements; C or Fortran order */
};

/*
 * From the first NPY_PREFIX_LEN bytes: how long is the header with its prefix?
 * At most NPY_HEADER_MAX.
 *
 *   -ENOMSG  not a .npy file
 */
MUST_CHECK int npy_header_len(const uint8_t prefix[NPY_PREFIX_LEN],
			      size_t *out);

/*
 * len: what npy_header_len() said.
 *
 *   -ENOMSG  not a .npy file, or elements that are no numbers (structures,
 *            objects, strings, times)
 */
MUST_CHECK int npy_header_parse(const uint8_t *p, size_t len,
				struct npy_header *out);

#endif
