/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C: the vectors of RFC 3720, and instruction against table for every
 * length and alignment round the block sizes.
 */
#include "engine/checksum.h"

#include "check.h"

static void vectors(void)
{
	unsigned char buf[32];

	CHECK_EQ(crc32c(0, "", 0), 0);
	CHECK_EQ(crc32c(0, "123456789", 9), 0xe3069283u);
	memset(buf, 0, sizeof(buf));
	CHECK_EQ(crc32c(0, buf, sizeof(buf)), 0x8a9136aau);
	memset(buf, 0xff, sizeof(buf));
	CHECK_EQ(crc32c(0, buf, sizeof(buf)), 0x62a8ab43u);
	for (unsigned i = 0; i < sizeof(buf); i++)
		buf[i] = (unsigned char)i;
	CHECK_EQ(crc32c(0, buf, sizeof(buf)), 0x46dd794eu);
	CHECK_EQ(crc32c_portable(0, buf, sizeof(buf)), 0x46dd794eu);
}

static void same_by_both(const unsigned char *buf)
{
	static const size_t around[] = { 0, 8, 768, 1536, 24576, 25344, 49152 };

	for (size_t i = 0; i < sizeof(around) / sizeof(around[0]); i++)
		for (size_t more = 0; more < 40; more++)
			for (size_t at = 0; at < 9; at++) {
				size_t len = around[i] + more;

				CHECK_EQ(crc32c(7, buf + at, len),
					 crc32c_portable(7, buf + at, len));
			}
}

static void in_pieces(const unsigned char *buf, size_t len)
{
	uint32_t whole = crc32c(0, buf, len), crc = 0;

	for (size_t off = 0, n = 1; off < len; off += n, n = n * 3 % 9973) {
		if (n > len - off)
			n = len - off;
		crc = crc32c(crc, buf + off, n);
	}
	CHECK_EQ(crc, whole);
}

static void zeros(void)
{
	unsigned char *buf = calloc(1, 300000);

	CHECK(buf);
	CHECK_EQ(crc32c_zeros(0), 0);
	CHECK_EQ(crc32c_zeros(1), crc32c(0, buf, 1));
	CHECK_EQ(crc32c_zeros(65536), crc32c(0, buf, 65536));
	CHECK_EQ(crc32c_zeros(300000), crc32c(0, buf, 300000));
	free(buf);
}

int main(void)
{
	size_t len = 1 << 20;
	unsigned char *buf = malloc(len);
	uint32_t seed = 1;

	CHECK(buf);
	for (size_t i = 0; i < len; i++) {
		seed = seed * 1664525 + 1013904223;
		buf[i] = (unsigned char)(seed >> 24);
	}
	vectors();
	same_by_both(buf);
	in_pieces(buf, len);
	zeros();
	free(buf);
	return 0;
}
