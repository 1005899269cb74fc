/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both kinds of ring: what was handed over is in the file, also when attempts
 * come back short, from several threads at once that exit while they are in
 * flight (io_uring cancels some then); errors arrive in done(); the arithmetic
 * of the rest.
 */
#include "engine/ring.h"

#include <stdatomic.h>

#include "check.h"

#define DEPTH 4
#define LEN ((size_t)64 << 10)
#define N_IO 64
#define N_THREADS 4

static _Atomic unsigned n_done, n_failed;

static void count(struct tier_io *io)
{
	if (io->res)
		atomic_fetch_add(&n_failed, 1);
	atomic_fetch_add(&n_done, 1);
}

struct writer {
	struct ring *ring;
	struct tier_io io[N_IO];
	unsigned char *buf;
	int fd;
	unsigned number;
	pthread_t thread;
};

static void *write_many(void *arg)
{
	struct writer *w = arg;

	for (unsigned i = 0; i < N_IO; i++) {
		unsigned char *buf = w->buf + i * LEN;

		memset(buf, (int)(w->number * 31 + i), LEN);
		w->io[i] = (struct tier_io){
			.fd = w->fd,
			.buf = buf,
			.len = LEN,
			.off = ((uint64_t)w->number * N_IO + i) * LEN,
			.first_len = i % 3   ? 0
				     : i % 2 ? 4096
					     : 1000,
			.done = count,
		};
		CHECK_EQ(w->ring->ops->write(w->ring, &w->io[i]), 0);
	}
	return NULL;
}

static void check_file(int fd)
{
	unsigned char *buf = malloc(LEN);

	CHECK(buf);
	for (unsigned k = 0; k < N_THREADS * N_IO; k++) {
		unsigned char want = (unsigned char)(k / N_IO * 31 + k % N_IO);

		CHECK_EQ(pread(fd, buf, LEN, (off_t)(k * LEN)), LEN);
		for (size_t i = 0; i < LEN; i++)
			CHECK_EQ(buf[i], want);
	}
	free(buf);
}

static void many_writers(const struct ring_ops *ops, int fd)
{
	static struct writer writers[N_THREADS];
	struct ring *ring;
	char why[96] = "";

	CHECK_EQ(ops->open(DEPTH, &ring, why, sizeof(why)), 0);
	n_done = n_failed = 0;
	for (unsigned i = 0; i < N_THREADS; i++) {
		struct writer *w = &writers[i];

		w->ring = ring;
		w->fd = fd;
		w->number = i;
		CHECK(!posix_memalign((void **)&w->buf, 4096, N_IO * LEN));
		CHECK(!pthread_create(&w->thread, NULL, write_many, w));
	}
	for (unsigned i = 0; i < N_THREADS; i++)
		CHECK(!pthread_join(writers[i].thread, NULL));
	ring->ops->close(ring); /* waits for them */
	CHECK_EQ(n_done, N_THREADS * N_IO);
	CHECK_EQ(n_failed, 0);
	for (unsigned i = 0; i < N_THREADS; i++)
		free(writers[i].buf);
	check_file(fd);
}

static void errors_arrive(const struct ring_ops *ops, const char *path)
{
	static char buf[4096] __attribute__((aligned(4096)));
	struct tier_io io = { .buf = buf, .len = sizeof(buf), .done = count };
	struct ring *ring;
	char why[96] = "";

	io.fd = open(path, O_RDONLY);
	CHECK(io.fd >= 0);
	CHECK_EQ(ops->open(DEPTH, &ring, why, sizeof(why)), 0);
	n_done = n_failed = 0;
	CHECK_EQ(ring->ops->write(ring, &io), 0);
	ring->ops->close(ring);
	CHECK_EQ(n_done, 1);
	CHECK_EQ(io.res, -EBADF);
	close(io.fd);
}

static void one_kind(const struct ring_ops *ops, const char *dir)
{
	char path[PATH_MAX], why[96] = "";
	struct ring *ring;
	int fd, rc;

	rc = ops->open(DEPTH, &ring, why, sizeof(why));
	if (rc) {
		fprintf(stderr, "no %s here: %s\n", ops->name, why);
		CHECK(ops == &ring_uring_ops && *why);
		return;
	}
	ring->ops->close(ring);
	snprintf(path, sizeof(path), "%s/%s", dir, ops->name);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	CHECK(fd >= 0);
	many_writers(ops, fd);
	errors_arrive(ops, path);
	close(fd);
}

static void steps(void)
{
	struct tier_io io = { .len = 3 * 4096 };
	struct ring_step s;

	ring_step_init(&s, &io);
	CHECK_EQ(ring_step_len(&s), 3 * 4096);
	CHECK(!ring_step_over(&s, 5000)); /* the rest begins at a block */
	CHECK_EQ(s.done, 4096);
	CHECK_EQ(ring_step_len(&s), 2 * 4096);
	CHECK(!ring_step_over(&s, -EINTR));
	CHECK(!ring_step_over(&s, -EAGAIN));
	CHECK(!ring_step_over(&s, -ECANCELED));
	CHECK(!ring_step_over(&s, 0));
	CHECK(ring_step_over(&s, 2 * 4096));
	CHECK_EQ(io.res, 0);

	ring_step_init(&s, &io);
	CHECK(ring_step_over(&s, -ENOSPC));
	CHECK_EQ(io.res, -ENOSPC);

	ring_step_init(&s, &io);
	for (int i = 0; i < 1000 && !ring_step_over(&s, 0); i++)
		CHECK(i < 100); /* a write that never gets on must end */
	CHECK_EQ(io.res, -EIO);
}

static void best_says_which(void)
{
	struct ring *ring;
	char io[160] = "";

	CHECK_EQ(ring_open(DEPTH, &ring, io, sizeof(io)), 0);
	fprintf(stderr, "best here: %s\n", io);
	CHECK(!strncmp(io, ring->ops->name, strlen(ring->ops->name)));
	ring->ops->close(ring);
}

int main(void)
{
	const char *dir = check_tmpdir();

	steps();
	one_kind(&ring_uring_ops, dir);
	one_kind(&ring_threads_ops, dir);
	best_says_which();
	return 0;
}
