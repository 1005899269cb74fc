/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gives up waiting for a level leaves nothing behind in the daemon, and
 * what can never come is not waited for.
 */
#include "engine/core.h"
#include "tests/unit/engine_fixture.h"

/* A file of 8 MiB, closed; its number. */
static uint64_t save(struct engine *e)
{
	uint64_t fh, seq, ino = create(e, "f", &fh);
	int fd;

	CHECK(file_borrow_write(e, ino, &fd) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(pwrite(fd, check_dir, PATH_MAX, i << 20) == PATH_MAX);
	CHECK(ftruncate(fd, 8 << 20) == 0);
	CHECK(fallocate(fd, 0, 0, 8 << 20) == 0);
	file_return_fd(e, ino, true, fd);
	CHECK(file_flush(e, ino, fh) == 0);
	file_release(e, ino, fh);
	CHECK(engine_seal_all(e, &seq) == 0);
	return seq;
}

static bool nobody_waits(struct engine *e)
{
	bool yes;

	mutex_lock(&e->follow.lock);
	yes = STAILQ_EMPTY(&e->follow.waiters);
	mutex_unlock(&e->follow.lock);
	return yes;
}

static _Atomic int n_told, last_err;

static void told(void *arg, int err)
{
	(void)arg;
	last_err = err;
	n_told++;
}

/* Any number of them, and no thread for each. */
static void many(struct engine *e, uint64_t seq)
{
	struct timespec ms = { .tv_nsec = 1000000 };

	for (int i = 0; i < 1000; i++)
		engine_when_reached(e, seq, LEVEL_NVME, 5 + i % 7, told, NULL);
	for (int i = 0; i < 20000 && n_told < 1000; i++)
		nanosleep(&ms, NULL);
	CHECK_EQ(n_told, 1000);
	CHECK_EQ(last_err, -ETIMEDOUT);
	engine_when_reached(e, UINT64_MAX, LEVEL_NVME, 5, told, NULL);
	CHECK_EQ(n_told, 1001);
	CHECK_EQ(last_err, -EINVAL);
	engine_when_reached(e, seq, LEVEL_DRAM, 5, told, NULL);
	CHECK_EQ(n_told, 1002);
	CHECK_EQ(last_err, 0);
}

int main(void)
{
	struct engine *e;
	uint64_t seq;

	CHECK(snprintf(nvme, sizeof(nvme), "%s/nvme", check_tmpdir()) <
	      (int)sizeof(nvme));
	e = start_slow(2 << 20);
	seq = save(e);
	for (int i = 0; i < 5; i++)
		CHECK_EQ(engine_wait(e, seq, LEVEL_NVME, 5), -ETIMEDOUT);
	CHECK_EQ(engine_drain(e, LEVEL_NVME, 0), -ETIMEDOUT);
	CHECK(nobody_waits(e));
	CHECK_EQ(engine_wait(e, UINT64_MAX, LEVEL_NVME, 5), -EINVAL);
	CHECK_EQ(engine_wait(e, UINT64_MAX, LEVEL_DRAM, -1), -EINVAL);
	many(e, seq);
	CHECK(nobody_waits(e));
	engine_when_reached(e, seq, LEVEL_NVME, 1000000, told, NULL);
	engine_stop(e, 0);
	CHECK_EQ(n_told, 1003); /* it was reached, or the end was told */

	e = start();
	CHECK_EQ(engine_wait(e, seq, LEVEL_NVME, 20000), 0);
	CHECK(nobody_waits(e));
	engine_stop(e, -1);
	return 0;
}
