/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Is what a format or a record says of a tensor possible at all? The one place
 * where it is asked, so that those who use tensors need not. No state.
 */
#ifndef CKPT_PROVIDERS_READER_CHECK_H
#define CKPT_PROVIDERS_READER_CHECK_H

#include "providers/reader.h"

/*
 * t's arrays are all there (see struct tensor_piece). size: of the file
 * itself; UINT64_MAX if not known.
 *
 *   -ENOMSG  impossible
 */
MUST_CHECK int tensor_check(const struct tensor *t, uint64_t size);

/*
 * Strides of C order, elements, for a box with elements.
 *
 *   -ENOMSG  they overflow
 */
MUST_CHECK int tensor_c_strides(const uint64_t *shape, unsigned n_dims,
				uint64_t *out);

/* Does [s, s + len) hold UTF-8, without NUL? */
bool utf8_valid(const char *s, size_t len);

#endif
