/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush_run: the bytes arrive, with the right checksums and size, holes stay
 * holes, whether mapped or bounced, into a new, a preallocated or a half
 * filled file; errors come out and a retry is right; verify finds one bit.
 */
#include "engine/flush.h"

#include <stdatomic.h>
#include <time.h>

#include "engine/checksum.h"

#include "check.h"

#define MIB ((uint64_t)1 << 20)
#define N_CRCS 16

static const char *nvme_dir;
static char shm_dir[] = "/dev/shm/ckptfs-unit-XXXXXX";

static void cleanup(void)
{
	check_remove(shm_dir);
}

/* Data where `data` says so, MiB by MiB: 'x' data, '.' hole. */
static int source(uint64_t size, const char *data)
{
	unsigned char *buf = malloc(MIB);
	char path[PATH_MAX];
	int fd;

	snprintf(path, sizeof(path), "%s/src", shm_dir);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0 && buf);
	CHECK(!ftruncate(fd, (off_t)size));
	for (uint64_t off = 0; off < size; off += MIB) {
		size_t len = size - off < MIB ? size - off : MIB;

		if (data && data[off / MIB] == '.')
			continue;
		for (size_t i = 0; i < len; i++)
			buf[i] = (unsigned char)((off + i) * 13 + off / 4096);
		CHECK_EQ(pwrite(fd, buf, len, (off_t)off), len);
	}
	free(buf);
	return fd;
}

static void check_same(int src, int dst, uint64_t size)
{
	unsigned char *a = malloc(MIB), *b = malloc(MIB);
	struct stat st;

	CHECK(a && b);
	CHECK(!fstat(dst, &st));
	CHECK_EQ(st.st_size, size);
	for (uint64_t off = 0; off < size; off += MIB) {
		size_t len = size - off < MIB ? size - off : MIB;

		CHECK_EQ(pread(src, a, len, (off_t)off), len);
		CHECK_EQ(pread(dst, b, len, (off_t)off), len);
		CHECK(!memcmp(a, b, len));
	}
	free(a);
	free(b);
}

static uint64_t n_bytes(int fd)
{
	struct stat st;

	CHECK(!fstat(fd, &st));
	return (uint64_t)st.st_blocks * 512;
}

static void flush_and_check(struct tier *t, int src, uint64_t size, bool final,
			    uint64_t most)
{
	_Atomic uint64_t progress = 5;
	uint32_t crcs[N_CRCS], bad;
	struct flush_job job = {
		.src_fd = src,
		.size = size,
		.final = final,
		.dst = t,
		.dst_id = 1,
		.progress = &progress,
		.crcs = crcs,
	};
	int dst;

	CHECK_EQ(flush_run(&job), 0);
	CHECK_EQ(progress, size + 5);
	CHECK_EQ(t->ops->open(t, 1, O_RDWR, &dst), 0);
	check_same(src, dst, size);
	CHECK(n_bytes(dst) <= most);
	CHECK_EQ(checksum_verify(dst, size, crcs, (uint32_t)N_CHUNKS(size),
				 &bad),
		 0);
	if (size) {
		unsigned char b;

		CHECK_EQ(pread(dst, &b, 1, (off_t)size - 1), 1);
		b ^= 1;
		CHECK_EQ(pwrite(dst, &b, 1, (off_t)size - 1), 1);
		CHECK_EQ(checksum_verify(dst, size, crcs,
					 (uint32_t)N_CHUNKS(size), &bad),
			 -EBADMSG);
		CHECK_EQ(bad, N_CHUNKS(size) - 1);
	}
	close(dst);
}

enum before { NOTHING, PREALLOCATED, HALF_FILLED, N_BEFORE };

/* What is there before: room for more than the size; or other bytes. */
static void prepare(struct tier *t, enum before before, uint64_t size)
{
	uint64_t len = size + 6 * MIB;
	int fd;

	CHECK_EQ(t->ops->remove(t, 1), 0);
	if (before == NOTHING)
		return;
	CHECK_EQ(t->ops->create(t, 1, O_RDWR, &fd), 0);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, len), 0);
	if (before == HALF_FILLED) {
		char *junk = malloc(len);

		CHECK(junk);
		memset(junk, 'j', len);
		CHECK_EQ(write(fd, junk, len), len);
		free(junk);
	}
	close(fd);
}

/* Chunks with some data in them are written whole; the others are holes. */
static uint64_t blocks_most(uint64_t size, const char *data)
{
	uint64_t sum = 0;

	if (!data)
		return size + 8192;
	for (size_t i = 0; i < strlen(data); i += CHUNK_LEN / MIB)
		if (memchr(data + i, 'x', strnlen(data + i, CHUNK_LEN / MIB)))
			sum += CHUNK_LEN;
	return sum + 8192;
}

static void one(struct tier *t, uint64_t size, const char *data)
{
	int src = source(size, data);

	for (enum before b = NOTHING; b < N_BEFORE; b++)
		for (int final = 0; final < 2; final++) {
			uint64_t had = n_bytes(src);

			prepare(t, b, size);
			flush_and_check(t, src, size, final,
					blocks_most(size, data));
			/* Reading must not fill the source's holes. */
			CHECK_EQ(n_bytes(src), had);
		}
	close(src);
}

/* Snapshot of a file that was cut meanwhile: zeros behind its end. */
static void shorter(struct tier *t)
{
	int src = source(5 * MIB, NULL);
	uint32_t crcs[2];
	struct flush_job job = {
		.src_fd = src,
		.size = 5 * MIB,
		.dst = t,
		.dst_id = 1,
		.crcs = crcs,
	};
	int dst;

	CHECK(!ftruncate(src, 3 * MIB + 5));
	for (int final = 0; final < 2; final++) {
		job.final = final; /* must not be SIGBUS either */
		prepare(t, HALF_FILLED, 5 * MIB);
		CHECK_EQ(flush_run(&job), 0);
		CHECK_EQ(t->ops->open(t, 1, O_RDONLY, &dst), 0);
		CHECK_EQ(checksum_verify(dst, 5 * MIB, crcs, 2, NULL), 0);
		CHECK(!ftruncate(src, 5 * MIB));
		check_same(src, dst, 5 * MIB);
		CHECK(!ftruncate(src, 3 * MIB + 5));
		close(dst);
	}
	close(src);
}

static void in_place(struct tier *t)
{
	int src = source(10 * MIB + 3, "xxx....xxxx"), dst;
	uint32_t want[3], crcs[3];
	struct flush_job job = {
		.src_fd = src,
		.size = 10 * MIB + 3,
		.final = true,
		.dst = t,
		.dst_id = 1,
		.crcs = want,
	};

	CHECK_EQ(flush_run(&job), 0);
	CHECK_EQ(t->ops->open(t, 1, O_RDONLY, &dst), 0);
	job.src_fd = dst;
	job.in_place = true;
	job.crcs = crcs;
	CHECK_EQ(flush_run(&job), 0);
	CHECK(!memcmp(want, crcs, sizeof(crcs)));
	close(dst);
	close(src);
}

/* Every spec: how the first try ends; a try without faults is then right. */
static void faults(void)
{
	static const struct {
		const char *spec;
		int rc;
		bool found; /* rc 0, but verify must find it */
	} tries[] = {
		{ "write:short", 0, false },
		{ "write:error=EIO:after=1:times=1", -EIO, false },
		{ "write:full:after=2", -ENOSPC, false },
		{ "sync:error=EIO", -EIO, false },
		{ "create:full", -ENOSPC, false },
		{ "open:error=EIO:after=1", -EIO, false },
		{ "write:torn:after=1:times=1", 0, true },
		{ "write:flip:after=1:times=1", 0, true },
		{ "write:delay=2ms", 0, false },
	};
	uint64_t size = 14 * MIB + 9;
	int src = source(size, NULL);

	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		_Atomic uint64_t progress = 0;
		uint32_t crcs[N_CRCS];
		struct flush_job job = {
			.src_fd = src,
			.size = size,
			.final = i % 2,
			.dst_id = 1,
			.progress = &progress,
			.crcs = crcs,
		};
		struct tier *real, *t;
		int dst;

		CHECK_EQ(tier_nvme_open(nvme_dir, 0, &real), 0);
		CHECK_EQ(real->ops->remove(real, 1), 0);
		CHECK_EQ(tier_faulty_open(real, tries[i].spec, &t), 0);
		job.dst = t;
		CHECK_EQ(flush_run(&job), tries[i].rc);
		CHECK_EQ(progress, tries[i].rc ? 0 : size);
		if (!tries[i].rc) {
			CHECK_EQ(real->ops->open(real, 1, O_RDONLY, &dst), 0);
			CHECK_EQ(checksum_verify(dst, size, crcs, 4, NULL),
				 tries[i].found ? -EBADMSG : 0);
			close(dst);
		}
		flush_and_check(real, src, size, !job.final, size + 8192);
		t->ops->close(t);
	}
	close(src);
}

static void throttled(struct tier *t)
{
	int src = source(12 * MIB, NULL);
	uint32_t crcs[3];
	struct flush_job job = {
		.src_fd = src,
		.size = 12 * MIB,
		.final = true,
		.dst = t,
		.dst_id = 1,
		.crcs = crcs,
	};
	struct timespec a, b;
	double took;

	CHECK_EQ(throttle_new(0, &job.throttle), 0);
	CHECK(!job.throttle);
	CHECK_EQ(throttle_new(20 * MIB, &job.throttle), 0);
	clock_gettime(CLOCK_MONOTONIC, &a);
	CHECK_EQ(flush_run(&job), 0);
	clock_gettime(CLOCK_MONOTONIC, &b);
	took = (double)(b.tv_sec - a.tv_sec) +
	       (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
	CHECK(took > 0.29); /* 8 MiB at 20 MiB/s, less a burst of 0.1 s */
	throttle_free(job.throttle);
	throttle_free(NULL);
	close(src);
}

/* Chunks 1 and 2 of 5 are there before the seal; 2 changed since. */
static void in_parts(void)
{
	uint64_t size = 4 * CHUNK_LEN + 77;
	int src = source(size, NULL), dst;
	uint8_t on[3] = { 0, 1, 1 };
	uint32_t have_crcs[3], crcs[N_CRCS];
	struct flush_have have = { .n = 3, .on = on, .crcs = have_crcs };
	struct flush_job part = {
		.src_fd = src,
		.from = CHUNK_LEN,
		.size = 3 * CHUNK_LEN,
		.part = true,
		.dst_id = 1,
		.crcs = have_crcs + 1,
	};
	struct flush_job whole = { .src_fd = src,
				   .size = size,
				   .final = true,
				   .dst_id = 1,
				   .have = &have,
				   .crcs = crcs };
	struct tier *real, *t;
	struct stat st;
	char was[8];

	CHECK_EQ(tier_nvme_open(nvme_dir, 0, &real), 0);
	prepare(real, NOTHING, size);
	/* Six may be written: twice the part, and all but one of the rest. */
	CHECK_EQ(tier_faulty_open(real, "write:error=EIO:after=6", &t), 0);
	part.dst = whole.dst = t;
	CHECK_EQ(flush_run(&part), 0);
	CHECK_EQ(t->ops->open(t, 1, O_RDWR, &dst), 0);
	CHECK(!fstat(dst, &st));
	CHECK_EQ(st.st_size, 3 * CHUNK_LEN);
	CHECK_EQ(pread(src, &was, 7, 2 * CHUNK_LEN + 5), 7);
	CHECK_EQ(pwrite(src, "changed", 7, 2 * CHUNK_LEN + 5), 7);
	CHECK_EQ(flush_run(&whole), 0); /* 2 + 4 writes */
	check_same(src, dst, size);
	CHECK_EQ(checksum_verify(dst, size, crcs, 5, NULL), 0);
	/* Changed back: what was there before the first try is not there. */
	whole.dst = real;
	CHECK_EQ(pwrite(src, &was, 7, 2 * CHUNK_LEN + 5), 7);
	CHECK_EQ(flush_run(&whole), 0);
	check_same(src, dst, size);
	CHECK_EQ(flush_run(&part), -EIO); /* the seventh: it does count */
	t->ops->close(t);
	close(dst);
	close(src);
}

int main(void)
{
	static const uint64_t sizes[] = {
		0,         1,
		4095,      4096,
		4097,      CHUNK_LEN - 1,
		CHUNK_LEN, CHUNK_LEN + 1,
		41 * MIB,
	};
	struct tier *t;

	nvme_dir = check_tmpdir();
	CHECK(mkdtemp(shm_dir));
	check_at_end(cleanup);
	CHECK_EQ(tier_nvme_open(nvme_dir, 0, &t), 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		one(t, sizes[i], NULL);
	one(t, 10 * MIB, "xxxx....xx");
	one(t, 10 * MIB + 1, "....xxxx...");
	one(t, 15 * MIB + 99, "xx....x.......x.");
	one(t, 9 * MIB, ".........");
	shorter(t);
	in_place(t);
	throttled(t);
	t->ops->close(t);
	in_parts();
	faults();
	return 0;
}
