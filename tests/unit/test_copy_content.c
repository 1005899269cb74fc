/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_content: same bytes, same size, chunks that are holes stay so, over whatever the
 * destination held; checked copies refuse a flipped bit. Within the disk,
 * within tmpfs, and across.
 */
#include "engine/checksum.h"
#include "engine/flush.h"

#include "check.h"

#define MIB ((uint64_t)1 << 20)

static char shm[] = "/dev/shm/ckptfs-unit-XXXXXX";

static void shm_remove(void)
{
	check_remove(shm);
}

static unsigned char byte_at(uint64_t off)
{
	return (unsigned char)(off * 31 + (off >> 12) * 7 + 1);
}

/* holes: every other 9 MiB is one. */
static void fill(int fd, uint64_t size, bool holes)
{
	unsigned char *buf = malloc(MIB);

	CHECK(buf);
	CHECK(!ftruncate(fd, 0));
	CHECK(!ftruncate(fd, (off_t)size));
	for (uint64_t off = 0; off < size; off += MIB) {
		size_t len = size - off < MIB ? size - off : MIB;

		if (holes && off / (9 * MIB) % 2)
			continue;
		for (size_t i = 0; i < len; i++)
			buf[i] = byte_at(off + i);
		CHECK_EQ(pwrite(fd, buf, len, (off_t)off), len);
	}
	free(buf);
}

static void sums(int fd, uint64_t size, uint32_t *crcs)
{
	unsigned char *buf = malloc(CHUNK_LEN);

	CHECK(buf);
	for (uint64_t off = 0; off < size; off += CHUNK_LEN) {
		ssize_t n = pread(fd, buf, CHUNK_LEN, (off_t)off);

		CHECK(n > 0);
		crcs[off / CHUNK_LEN] = crc32c(0, buf, (size_t)n);
	}
	free(buf);
}

static int fresh(const char *dir, const char *name)
{
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	return fd;
}

static void check_copy(int src, int dst, uint64_t size, const uint32_t *sum,
		       bool checked)
{
	struct stat a, b;

	CHECK_EQ(copy_content(src, dst, size, checked ? sum : NULL), 0);
	CHECK(!fstat(src, &a));
	CHECK(!fstat(dst, &b));
	CHECK_EQ(b.st_size, size);
	CHECK(b.st_blocks * 512 <= a.st_blocks * 512 + CHUNK_LEN + 8192);
	CHECK_EQ(checksum_verify(dst, size, sum, (uint32_t)N_CHUNKS(size),
				 NULL),
		 0);
}

static void one(const char *from, const char *to, uint64_t size, bool holes,
		bool checked)
{
	int src = fresh(from, "src"), dst = fresh(to, "dst");
	uint32_t sum[8] = { 0 };

	fill(src, size, holes);
	sums(src, size, sum);
	check_copy(src, dst, size, sum, checked);
	/* Over what is longer and full of other bytes. */
	fill(dst, size + 3 * MIB, false);
	CHECK_EQ(pwrite(dst, "other", 5, 17), 5);
	check_copy(src, dst, size, sum, checked);
	close(src);
	close(dst);
}

static void flipped(const char *dir)
{
	int src = fresh(dir, "src"), dst = fresh(dir, "dst");
	uint64_t size = 9 * MIB;
	uint32_t sum[8], bad = 99;
	unsigned char b;

	fill(src, size, false);
	sums(src, size, sum);
	b = byte_at(4 * MIB + 1) ^ 0x10;
	CHECK_EQ(pwrite(src, &b, 1, 4 * MIB + 1), 1);
	CHECK_EQ(copy_content(src, dst, size, sum), -EBADMSG);
	CHECK_EQ(checksum_verify(src, size, sum, 3, &bad), -EBADMSG);
	CHECK_EQ(bad, 1);
	CHECK_EQ(checksum_verify(src, size, sum, 2, NULL), -EINVAL);
	CHECK(!ftruncate(src, 3 * MIB)); /* too short */
	CHECK_EQ(copy_content(src, dst, size, NULL), -EBADMSG);
	CHECK_EQ(copy_content(src, dst, size, sum), -EBADMSG);
	close(src);
	close(dst);
}

/* A source opened O_DIRECT reads whole blocks; so does a destination. */
static void direct(const char *dir)
{
	int src = fresh(dir, "src"), dst = fresh(dir, "dst");
	uint64_t size = 5 * MIB + 123;
	uint32_t sum[8];

	fill(src, size, false);
	sums(src, size, sum);
	if (fcntl(src, F_SETFL, O_DIRECT) || fcntl(dst, F_SETFL, O_DIRECT)) {
		fprintf(stderr, "no O_DIRECT on %s\n", dir);
	} else {
		CHECK(!fsync(src));
		check_copy(src, dst, size, sum, true);
		check_copy(src, dst, size, sum, false);
	}
	close(src);
	close(dst);
}

int main(void)
{
	static const uint64_t sizes[] = {
		0,
		1,
		4095,
		4096,
		CHUNK_LEN - 1,
		CHUNK_LEN,
		CHUNK_LEN + 1,
		17 * MIB + 77,
	};
	const char *dir = check_tmpdir();
	const char *at[2] = { dir, shm };

	CHECK(mkdtemp(shm));
	check_at_end(shm_remove);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		for (unsigned k = 0; k < 16; k++)
			one(at[k & 1], at[k >> 1 & 1], sizes[i], k >> 2 & 1,
			    k >> 3);
	flipped(dir);
	direct(dir);
	return 0;
}
