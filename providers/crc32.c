/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zip's CRC-32, faster than storage: a block of 64 bytes is folded into the next
 * by carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ", Intel 2009). What is left of it, 16 bytes that
 * have the same remainder as all before, goes through the table, as does what
 * is too short. Without the instruction: slicing by eight.
 *
 * A CRC that begins with zero and is not inverted is linear, so ranges can be
 * summed in any order: each is multiplied by x^(8 n) for the n bytes behind it,
 * and all are added (xor). The inversion of the start, which zip has, is one
 * more summand.
 *
 * The tables are made once, on first use, and never change.
 */
#include "providers/crc32.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define HARDWARE __attribute__((target("pclmul,sse2")))
#endif

#define POLYNOMIAL 0xedb88320u /* bits reversed */

static struct {
	uint32_t slice[8][256];
	uint32_t power[64]; /* x^(8 * 2^k) modulo the polynomial */
	bool by_instruction;
} tables; /* written in tables_make() only */

/* a times b modulo the polynomial; bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1) {
		if (a & 0x80000000u)
			product ^= b;
		b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
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
		for (int v = 0; v < 256; v++) {
			uint32_t crc = tables.slice[k - 1][v];

			tables.slice[k][v] = (crc >> 8) ^
					     tables.slice[0][crc & 0xff];
		}
	tables.power[0] = 0x00800000u; /* x^8 */
	for (int k = 1; k < 64; k++)
		tables.power[k] =
			multiply(tables.power[k - 1], tables.power[k - 1]);
#if defined(__x86_64__)
	tables.by_instruction = __builtin_cpu_supports("pclmul");
#endif
}

static void prepare(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, tables_make);
}

/* Here and below: no inversions. */
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

#if defined(__x86_64__)
/* What was summed, moved over by the distance that k stands for, and `next`. */
HARDWARE static inline __m128i fold(__m128i sum, __m128i k, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(sum, k, 0x00);
	__m128i high = _mm_clmulepi64_si128(sum, k, 0x11);

	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

HARDWARE static inline __m128i load(const unsigned char *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

HARDWARE static uint32_t by_multiplying(uint32_t crc, const unsigned char *p,
					size_t len)
{
	/* x^(d + 32) and x^(d - 32) for a distance of d bits, reflected. */
	const __m128i over_512 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
	const __m128i over_128 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
	__m128i s[4], one;
	unsigned char rest[16];

	for (int i = 0; i < 4; i++)
		s[i] = load(p + 16 * i);
	s[0] = _mm_xor_si128(s[0], _mm_cvtsi32_si128((int)crc));
	for (p += 64, len -= 64; len >= 64; p += 64, len -= 64)
		for (int i = 0; i < 4; i++)
			s[i] = fold(s[i], over_512, load(p + 16 * i));
	one = s[0];
	for (int i = 1; i < 4; i++)
		one = fold(one, over_128, s[i]);
	for (; len >= 16; p += 16, len -= 16)
		one = fold(one, over_128, load(p));
	_mm_storeu_si128((__m128i *)rest, one);
	return by_table(by_table(0, rest, sizeof(rest)), p, len);
}
#endif

static uint32_t sum(uint32_t crc, const void *bytes, size_t len)
{
#if defined(__x86_64__)
	if (len >= 64 && tables.by_instruction)
		return by_multiplying(crc, bytes, len);
#endif
	return by_table(crc, bytes, len);
}

/* crc, followed by n zero bytes. */
static uint32_t over_zeros(uint32_t crc, uint64_t n)
{
	for (int k = 0; n; k++, n >>= 1)
		if (n & 1)
			crc = multiply(tables.power[k], crc);
	return crc;
}

uint32_t zip_crc32(uint32_t crc, const void *bytes, size_t len)
{
	prepare();
	return ~sum(~crc, bytes, len);
}

uint32_t zip_crc32_portable(uint32_t crc, const void *bytes, size_t len)
{
	prepare();
	return ~by_table(~crc, bytes, len);
}

uint32_t zip_crc32_part(const void *bytes, size_t len, uint64_t n_behind)
{
	prepare();
	return over_zeros(sum(0, bytes, len), n_behind);
}

uint32_t zip_crc32_whole(uint32_t parts, uint64_t size)
{
	prepare();
	return ~(parts ^ over_zeros(UINT32_MAX, size));
}
