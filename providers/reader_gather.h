/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tensor as others want to read it: C order, little-endian, contiguous,
 * whatever views, strides, pieces and codings its files have; and as a .npy
 * file (the header is made here, its data are that image).
 *
 * .npy names no bfloat16 and no 8-bit floats: their bits are shown as "<u2"
 * and "|u1", complex of f16 as "<u4", TENSOR_PACKED as "|u1" of all its bytes
 * (NumPy's format: numpy.lib.format, version 1.0 and 2.0).
 *
 * Threads: any.
 */
#ifndef CKPT_PROVIDERS_READER_GATHER_H
#define CKPT_PROVIDERS_READER_GATHER_H

#include "providers/reader.h"

/*
 * Bytes of the image: elements times their length; TENSOR_PACKED: its len;
 * TENSOR_UNKNOWN: 0.
 */
uint64_t tensor_len(const struct tensor *t);

/*
 * Is the image one run of bytes of one file (then a mapping of that file is
 * the tensor)? If so *piece is it: its file, off and len.
 */
bool tensor_is_run(const struct tensor *t, const struct tensor_piece **piece);

/*
 * Fill buf with bytes [off, off + len) of the image. Reads only what they need
 * (a piece that is deflated or nested: as much as decoding takes), in pieces of
 * at most 4 MiB of memory. t comes from a table or a scan.
 *
 *   -ERANGE   beyond tensor_len()
 *   -EBADMSG  a piece turned out not to be what its record says
 *   -ENOMEM, and what open or a read returned
 */
MUST_CHECK int tensor_gather(const struct tensor *t, tensor_open *open,
			     void *open_arg, void *buf, size_t len,
			     uint64_t off);

/*
 * The .npy header for t, padded so that data begin at a multiple of 64.
 * Returns its length; writes nothing if that is more than room.
 */
size_t tensor_npy_header(const struct tensor *t, void *buf, size_t room);

#endif
