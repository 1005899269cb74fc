/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zip's CRC-32: known sums, instruction against table for every length and
 * alignment round the block sizes, and parts in any order.
 */
#include "providers/crc32.h"

#include "check.h"

static void vectors(void)
{
	CHECK_EQ(zip_crc32(0, "", 0), 0);
	CHECK_EQ(zip_crc32(0, "123456789", 9), 0xcbf43926u);
	CHECK_EQ(zip_crc32_portable(0, "123456789", 9), 0xcbf43926u);
}

static void same_by_both(const unsigned char *buf)
{
	for (size_t len = 0; len < 400; len++)
		for (size_t at = 0; at < 17; at++)
			CHECK_EQ(zip_crc32(7, buf + at, len),
				 zip_crc32_portable(7, buf + at, len));
	CHECK_EQ(zip_crc32(0, buf, 65536), zip_crc32_portable(0, buf, 65536));
}

static void in_pieces(const unsigned char *buf, size_t len)
{
	uint32_t crc = 0;

	for (size_t off = 0, n = 1; off < len; off += n, n = n * 3 % 9973) {
		if (n > len - off)
			n = len - off;
		crc = zip_crc32(crc, buf + off, n);
	}
	CHECK_EQ(crc, zip_crc32_portable(0, buf, len));
}

/* Cut in two places, the parts last to first. */
static void in_any_order(const unsigned char *buf, size_t len)
{
	for (size_t a = 0; a <= len; a += 509)
		for (size_t b = a; b <= len; b += 1021) {
			uint32_t parts = 0;

			parts ^= zip_crc32_part(buf + b, len - b, 0);
			parts ^= zip_crc32_part(buf + a, b - a, len - b);
			parts ^= zip_crc32_part(buf, a, len - a);
			CHECK_EQ(zip_crc32_whole(parts, len),
				 zip_crc32_portable(0, buf, len));
		}
}

static void zeros_left_out(unsigned char *buf, size_t len)
{
	uint32_t parts = zip_crc32_part(buf, 100, len - 100);

	memset(buf + 100, 0, len - 100);
	CHECK_EQ(zip_crc32_whole(parts, len), zip_crc32_portable(0, buf, len));
	CHECK_EQ(zip_crc32_whole(0, 0), 0);
}

int main(void)
{
	static unsigned char buf[65536];
	uint32_t seed = 1;

	for (size_t i = 0; i < sizeof(buf); i++) {
		seed = seed * 1664525 + 1013904223;
		buf[i] = (unsigned char)(seed >> 24);
	}
	vectors();
	same_by_both(buf);
	in_pieces(buf, sizeof(buf));
	in_any_order(buf, 5000);
	zeros_left_out(buf, 4096);
	return 0;
}
