/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The faulty tier does what its spec says, at the call it says, and nothing
 * else; a spec that is not one is refused and the real tier kept. Also the
 * plain operations of both real tiers.
 */
#include <sys/statvfs.h>
#include <time.h>

#include "engine/tier.h"

#include "check.h"

#define LEN ((size_t)64 << 10)

static unsigned char buf[LEN] __attribute__((aligned(4096)));

struct waiter {
	struct tier_io io;
	struct mutex lock;
	pthread_cond_t cond;
	bool over;
};

static void wake(struct tier_io *io)
{
	struct waiter *w = CONTAINER_OF(io, struct waiter, io);

	mutex_lock(&w->lock);
	w->over = true;
	pthread_cond_signal(&w->cond);
	mutex_unlock(&w->lock);
}

static int write_one(struct tier *t, int fd, uint64_t off)
{
	struct waiter w = {
		.io = { .fd = fd,
			.buf = buf,
			.len = LEN,
			.off = off,
			.done = wake },
		.lock = MUTEX_INIT,
		.cond = PTHREAD_COND_INITIALIZER,
	};
	int rc = t->ops->write(t, &w.io);

	if (rc)
		return rc;
	mutex_lock(&w.lock);
	while (!w.over)
		pthread_cond_wait(&w.cond, &w.lock.m);
	mutex_unlock(&w.lock);
	return w.io.res;
}

/* Bytes of the file that differ from buf, up to LEN. */
static size_t n_wrong(int fd)
{
	unsigned char got[LEN];
	ssize_t n = pread(fd, got, LEN, 0);
	size_t wrong;

	CHECK(n >= 0);
	wrong = LEN - (size_t)n;
	for (ssize_t i = 0; i < n; i++)
		wrong += got[i] != buf[i];
	return wrong;
}

static struct tier *faulty(const char *dir, const char *spec)
{
	struct tier *real, *t;

	CHECK_EQ(tier_nvme_open(dir, 0, &real), 0);
	CHECK_EQ(tier_faulty_open(real, spec, &t), 0);
	CHECK_STR(t->ops->name, "nvme");
	CHECK(strstr(t->io, spec));
	return t;
}

static int fresh(struct tier *t, uint64_t id)
{
	int fd;

	CHECK_EQ(t->ops->remove(t, id), 0);
	CHECK_EQ(t->ops->create(t, id, O_RDWR, &fd), 0);
	return fd;
}

static void one_write(const char *dir, const char *spec, int res, size_t wrong)
{
	struct tier *t = faulty(dir, spec);
	int fd = fresh(t, 1);

	CHECK_EQ(write_one(t, fd, 0), res);
	CHECK_EQ(n_wrong(fd), wrong);
	close(fd);
	t->ops->close(t);
}

static void counted(const char *dir)
{
	struct tier *t = faulty(dir, "write:error=EIO:after=2:times=3,"
				     "sync:full:times=1");
	int fd = fresh(t, 2);
	static const int want[] = { 0, 0, -EIO, -EIO, -EIO, 0, 0 };

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		CHECK_EQ(write_one(t, fd, 0), want[i]);
	CHECK_EQ(t->ops->sync(t, fd), -ENOSPC);
	CHECK_EQ(t->ops->sync(t, fd), 0);
	close(fd);
	t->ops->close(t);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void others(const char *dir)
{
	struct tier *t = faulty(dir, "create:error=EMFILE:times=1,"
				     "open:error=5:times=1,"
				     "preallocate:full:times=1,"
				     "remove:error=EROFS:after=2:times=1,"
				     "sync_names:error=EIO:times=1,"
				     "sync:delay=60ms:times=1");
	double start;
	int fd;

	CHECK_EQ(t->ops->remove(t, 3), 0);
	CHECK_EQ(t->ops->create(t, 3, O_RDWR, &fd), -EMFILE);
	fd = fresh(t, 3);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, LEN), -ENOSPC);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, LEN), 0);
	start = now();
	CHECK_EQ(t->ops->sync(t, fd), 0);
	CHECK(now() - start >= 0.059);
	close(fd);
	CHECK_EQ(t->ops->open(t, 3, O_RDWR, &fd), -EIO);
	CHECK_EQ(t->ops->open(t, 3, O_RDWR, &fd), 0);
	close(fd);
	CHECK_EQ(t->ops->sync_names(t), -EIO);
	CHECK_EQ(t->ops->sync_names(t), 0);
	CHECK_EQ(t->ops->remove(t, 3), -EROFS);
	CHECK_EQ(t->ops->remove(t, 3), 0);
	t->ops->close(t);
}

static void refused(const char *dir)
{
	static const char *const specs[] = {
		"",
		",",
		"write",
		"write:",
		"write:nonsense",
		"wrote:torn",
		"sync:torn",
		"sync:flip",
		"write:error=",
		"write:error=EWHAT",
		"write:error=0",
		"write:delay=5",
		"write:delay=ms",
		"write:torn:after=",
		"write:torn:after=-1",
		"write:torn:x=1",
		"write:torn,",
		"write:error=EIO:times=1x",
	};
	struct tier *real, *t = NULL;

	CHECK_EQ(tier_nvme_open(dir, 0, &real), 0);
	for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		if (tier_faulty_open(real, specs[i], &t) == -EINVAL)
			continue;
		fprintf(stderr, "accepted: '%s'\n", specs[i]);
		exit(1);
	}
	real->ops->close(real);
}

/* ---- the real ones ---- */

static char shm[] = "/dev/shm/ckptfs-unit-XXXXXX";

static void shm_remove(void)
{
	check_remove(shm);
}

static int note_id(void *arg, uint64_t id, uint64_t blocks)
{
	uint64_t *sum = arg;

	(void)blocks;
	*sum += id;
	return 0;
}

static void times_kept(struct tier *t, int fd)
{
	const struct timespec old[2] = { { 1000, 5 }, { 2000, 7 } };
	struct stat st;

	CHECK(!ftruncate(fd, 5000));
	CHECK(!futimens(fd, old));
	CHECK_EQ(t->ops->preallocate(t, fd, 0, 8 << 20), 0);
	CHECK(!fstat(fd, &st));
	CHECK_EQ(st.st_size, 5000);
	CHECK(st.st_blocks * 512 >= 8 << 20);
	CHECK_EQ(st.st_mtim.tv_sec, 2000);
	CHECK_EQ(st.st_mtim.tv_nsec, 7);
	CHECK_EQ(t->ops->trim(t, fd, 5000), 0);
	CHECK(!fstat(fd, &st));
	CHECK_EQ(st.st_size, 5000);
	CHECK(st.st_blocks * 512 <= 8192);
	CHECK_EQ(st.st_mtim.tv_sec, 2000);
}

static void real_tier(struct tier *t)
{
	const uint64_t big = 0xfedcba9876543210;
	struct tier_room room;
	uint64_t sum = 0;
	char path[PATH_MAX];
	int fd, other;

	fprintf(stderr, "%s: %s\n", t->ops->name, t->io);
	fd = fresh(t, big);
	CHECK_EQ(t->ops->create(t, big, O_RDWR, &other), -EEXIST);
	CHECK_EQ(t->ops->open(t, 77, O_RDONLY, &other), -ENOENT);
	CHECK_EQ(write_one(t, fd, 0), 0);
	CHECK_EQ(n_wrong(fd), 0);
	times_kept(t, fd);
	/* What is not a backing file is passed over. */
	snprintf(path, sizeof(path), "%s/ballast", t->dir);
	other = open(path, O_WRONLY | O_CREAT, 0600);
	CHECK(other >= 0);
	close(other);
	CHECK_EQ(t->ops->each(t, note_id, &sum), 0);
	CHECK(sum == big);
	CHECK_EQ(t->ops->room(t, &room), 0);
	CHECK(room.total && room.avail && room.used <= room.total);
	close(fd);
	CHECK_EQ(t->ops->remove(t, big), 0);
	CHECK_EQ(t->ops->remove(t, big), 0);
	t->ops->close(t);
	unlink(path);
}

static void limit_counts(const char *dir)
{
	struct tier *t;
	int fd;

	CHECK_EQ(tier_nvme_open(dir, 16 << 20, &t), 0);
	fd = fresh(t, 9);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, 12 << 20), 0);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, 12 << 20), 0);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, 20 << 20), -ENOSPC);
	CHECK_EQ(t->ops->remove(t, 9), 0);
	close(fd);
	fd = fresh(t, 10);
	CHECK_EQ(t->ops->preallocate(t, fd, 0, 14 << 20), 0);
	CHECK_EQ(t->ops->remove(t, 10), 0);
	close(fd);
	t->ops->close(t);
}

static void real_tiers(const char *parent)
{
	char dir[PATH_MAX];
	struct tier *t;

	CHECK_EQ(tier_nvme_open("/no/such", 0, &t), -ENOENT);
	snprintf(dir, sizeof(dir), "%s/real", parent);
	CHECK(!mkdir(dir, 0700));
	CHECK_EQ(tier_nvme_open(dir, 0, &t), 0);
	real_tier(t);
	limit_counts(dir);
	CHECK(mkdtemp(shm));
	check_at_end(shm_remove);
	CHECK_EQ(tier_dram_open(shm, 1 << 30, &t), 0);
	real_tier(t);
	CHECK_EQ(tier_nvme_open(shm, 0, &t), 0); /* O_DIRECT or not: works */
	real_tier(t);
}

int main(void)
{
	const char *dir = check_tmpdir();

	for (size_t i = 0; i < LEN; i++)
		buf[i] = (unsigned char)(i * 7 + i / 256 + 1);
	one_write(dir, "write:delay=1ms", 0, 0);
	one_write(dir, "write:short", 0, 0);
	one_write(dir, "write:torn", 0, LEN / 2);
	one_write(dir, "write:flip", 0, 1);
	one_write(dir, "write:full", -ENOSPC, LEN / 2);
	one_write(dir, "write:error=EIO", -EIO, LEN);
	counted(dir);
	others(dir);
	refused(dir);
	real_tiers(dir);
	return 0;
}
