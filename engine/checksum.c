/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C, as fast as memory is read: the processor's instruction has a latency
 * of three cycles but starts one each cycle, so three independent stretches
 * of a block are summed side by side and then joined. Joining needs "the sum,
 * followed by N zero bytes", a linear map that is tabled for the two stretch
 * lengths (Mark Adler's method). Without the instruction: slicing by eight.
 *
 * The tables are made once, on first use, and never change.
 */
#include "engine/checksum.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define HAVE_INSTRUCTION 1
#define HARDWARE __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define HAVE_INSTRUCTION 1
#define HARDWARE
#else
#define HAVE_INSTRUCTION 0
#endif

#define POLYNOMIAL 0x82f63b78u /* Castagnoli, bits reversed */
#define STRETCH_LONG 8192
#define STRETCH_SHORT 256

static struct {
	uint32_t slice[8][256];
	uint32_t over_long[4][256];
	uint32_t over_short[4][256];
	bool by_instruction;
} tables; /* written in tables_make() only */

static uint32_t over_zeros(uint32_t crc, size_t len)
{
	while (len--)
		crc = (crc >> 8) ^ tables.slice[0][crc & 0xff];
	return crc;
}

/* What len zero bytes make of each byte of a sum, by linearity. */
static void over_make(uint32_t over[4][256], size_t len)
{
	for (int k = 0; k < 4; k++) {
		for (int bit = 0; bit < 8; bit++)
			over[k][1 << bit] =
				over_zeros(UINT32_C(1) << (8 * k + bit), len);
		for (int v = 1; v < 256; v++)
			over[k][v] = over[k][v & (v - 1)] ^ over[k][v & -v];
	}
}

static bool have_instruction(void)
{
#if defined(__x86_64__)
	return __builtin_cpu_supports("sse4.2");
#else
	return HAVE_INSTRUCTION;
#endif
}

static void tables_make(void)
{
	for (uint32_t v = 0; v < 256; v++) {
		uint32_t crc = v;

		for (int bit = 0; bit < 8; bit++)
			crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
		tables.slice[0][v] = crc;
	}
	for (int k = 1; k < 8; k++)
		for (int v = 0; v < 256; v++)
			tables.slice[k][v] =
				over_zeros(tables.slice[k - 1][v], 1);
	over_make(tables.over_long, STRETCH_LONG);
	over_make(tables.over_short, STRETCH_SHORT);
	tables.by_instruction = have_instruction();
}

static uint32_t by_table(uint32_t crc, const unsigned char *p, size_t len)
{
	for (; len >= 8; p += 8, len -= 8) {
		crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 |
		       (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
		crc = tables.slice[7][crc & 0xff] ^
		      tables.slice[6][crc >> 8 & 0xff] ^
		      tables.slice[5][crc >> 16 & 0xff] ^
		      tables.slice[4][crc >> 24] ^ tables.slice[3][p[4]] ^
		      tables.slice[2][p[5]] ^ tables.slice[1][p[6]] ^
		      tables.slice[0][p[7]];
	}
	for (; len; p++, len--)
		crc = (crc >> 8) ^ tables.slice[0][(crc ^ *p) & 0xff];
	return crc;
}

#if HAVE_INSTRUCTION
HARDWARE static inline uint64_t step_word(uint64_t crc, const void *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
#if defined(__x86_64__)
	return _mm_crc32_u64(crc, word);
#else
	return __crc32cd((uint32_t)crc, word);
#endif
}

HARDWARE static inline uint32_t step_byte(uint32_t crc, unsigned char byte)
{
#if defined(__x86_64__)
	return _mm_crc32_u8(crc, byte);
#else
	return __crc32cb(crc, byte);
#endif
}

static inline uint32_t over(uint32_t table[4][256], uint32_t crc)
{
	return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^
	       table[2][crc >> 16 & 0xff] ^ table[3][crc >> 24];
}

/* Three stretches of `stretch` bytes, side by side. */
HARDWARE static inline uint32_t three(uint32_t crc, const unsigned char *p,
				      size_t stretch, uint32_t table[4][256])
{
	const unsigned char *end = p + stretch;
	uint64_t a = crc, b = 0, c = 0;

	for (; p < end; p += 8) {
		a = step_word(a, p);
		b = step_word(b, p + stretch);
		c = step_word(c, p + 2 * stretch);
	}
	crc = over(table, (uint32_t)a) ^ (uint32_t)b;
	return over(table, crc) ^ (uint32_t)c;
}

HARDWARE static uint32_t by_instruction(uint32_t crc, const unsigned char *p,
					size_t len)
{
	for (; len >= 3 * STRETCH_LONG; len -= 3 * STRETCH_LONG) {
		crc = three(crc, p, STRETCH_LONG, tables.over_long);
		p += 3 * STRETCH_LONG;
	}
	for (; len >= 3 * STRETCH_SHORT; len -= 3 * STRETCH_SHORT) {
		crc = three(crc, p, STRETCH_SHORT, tables.over_short);
		p += 3 * STRETCH_SHORT;
	}
	for (; len >= 8; p += 8, len -= 8)
		crc = (uint32_t)step_word(crc, p);
	for (; len; p++, len--)
		crc = step_byte(crc, *p);
	return crc;
}
#else
static uint32_t by_instruction(uint32_t crc, const unsigned char *p, size_t len)
{
	return by_table(crc, p, len);
}
#endif

static void tables_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, tables_make);
}

uint32_t crc32c(uint32_t crc, const void *buf, size_t len)
{
	tables_once();
	if (tables.by_instruction)
		return ~by_instruction(~crc, buf, len);
	return ~by_table(~crc, buf, len);
}

uint32_t crc32c_portable(uint32_t crc, const void *buf, size_t len)
{
	tables_once();
	return ~by_table(~crc, buf, len);
}

uint32_t crc32c_zeros(uint64_t len)
{
	static const unsigned char zeros[64 * 1024];
	uint32_t crc = 0;

	for (; len > sizeof(zeros); len -= sizeof(zeros))
		crc = crc32c(crc, zeros, sizeof(zeros));
	return crc32c(crc, zeros, (size_t)len);
}
