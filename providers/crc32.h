/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CRC-32 of zip (polynomial 0x04c11db7, reflected), for data that arrive in
 * any order. Threads: any.
 */
#ifndef CKPT_PROVIDERS_CRC32_H
#define CKPT_PROVIDERS_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Go on with crc (0 at the start) over len bytes. */
uint32_t zip_crc32(uint32_t crc, const void *bytes, size_t len);

/* The same without the processor's help; for tests. */
uint32_t zip_crc32_portable(uint32_t crc, const void *bytes, size_t len);

/*
 * Sums in any order. The sum of a whole of `size` bytes is the exclusive or of
 * the parts of all its ranges, each byte once, finished once. Ranges that are
 * left out count as zeros.
 *
 *	parts ^= zip_crc32_part(bytes, len, size - off - len);
 *	...
 *	crc = zip_crc32_whole(parts, size);
 */
uint32_t zip_crc32_part(const void *bytes, size_t len, uint64_t n_behind);
uint32_t zip_crc32_whole(uint32_t parts, uint64_t size);

#endif
