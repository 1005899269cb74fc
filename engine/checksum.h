/* SPDX-License-Identifier: Apache-2.0 */
/* CRC32C (Castagnoli, RFC 3720), by the processor's instruction if it has it. */
#ifndef CKPT_ENGINE_CHECKSUM_H
#define CKPT_ENGINE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* crc of what came before (0 at the start), continued over buf. */
uint32_t crc32c(uint32_t crc, const void *buf, size_t len);
/* The same without the instruction: for tests, and to compare. */
uint32_t crc32c_portable(uint32_t crc, const void *buf, size_t len);
/* Of len zero bytes: what a hole sums to. */
uint32_t crc32c_zeros(uint64_t len);

#endif
