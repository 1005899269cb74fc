/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libckpt on a plain directory: what the file holds, who waits for what, and
 * that what failed, was cancelled or died is never seen under its name.
 */
#include "providers/ckpt.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>

#include "check.h"

#define MIB ((size_t)1 << 20)

static const char *dir;

/* ThreadSanitizer loses count of threads in a forked child. */
#if defined(__SANITIZE_THREAD__)
static const bool may_start_threads = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
static const bool may_start_threads = false;
#else
static const bool may_start_threads = true;
#endif
#else
static const bool may_start_threads = true;
#endif

/* LeakSanitizer asks: in a forked child lies what the parent was copying. */
static int is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
	return is_child;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static const char *in_dir(const char *name)
{
	static char path[4][PATH_MAX];
	static unsigned i;
	char *p = path[i++ % 4];

	snprintf(p, PATH_MAX, "%s/%s", dir, name);
	return p;
}

static uint8_t *pattern(size_t len, unsigned seed)
{
	uint8_t *p = malloc(len);
	uint32_t x = seed * 2654435761u + 1;

	CHECK(p);
	for (size_t i = 0; i < len; i++) {
		x = x * 1664525u + 1013904223u;
		p[i] = (uint8_t)(x >> 24);
	}
	return p;
}

static size_t load(const char *path, uint8_t **out)
{
	int fd = open(path, O_RDONLY);
	struct stat st;

	CHECK(fd >= 0 && !fstat(fd, &st));
	*out = malloc((size_t)st.st_size + 1);
	CHECK(*out);
	CHECK_EQ(read(fd, *out, (size_t)st.st_size), st.st_size);
	close(fd);
	return (size_t)st.st_size;
}

static unsigned entries(void)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	unsigned n = 0;

	CHECK(d);
	while ((e = readdir(d)))
		n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..");
	closedir(d);
	return n;
}

static struct ckpt *engine(enum ckpt_exit at_exit, size_t chunk, size_t staging)
{
	struct ckpt_options o = { .options_len = sizeof(o),
				  .chunk_len = chunk,
				  .staging_len = staging,
				  .at_exit = at_exit };
	struct ckpt *ck;

	CHECK_EQ(ckpt_open(&o, &ck), 0);
	return ck;
}

static struct ckpt_capture *begin(struct ckpt *ck, const char *name)
{
	struct ckpt_capture *cap;

	CHECK_EQ(ckpt_begin(ck, in_dir(name), &cap), 0);
	return cap;
}

struct text {
	const char *bytes;
	int err;
	double took;
	atomic_int n_freed;
};

static int serialise(void *arg, const void **bytes, size_t *len)
{
	struct text *t = arg;

	poll(NULL, 0, (int)(t->took * 1e3)); /* serialising takes so long */
	*bytes = t->bytes;
	*len = strlen(t->bytes);
	return t->err;
}

static void freed(void *arg)
{
	struct text *t = arg;

	t->n_freed++;
}

/* All kinds, nested, in an order that is not that of the capture. */
static void layout(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 64 * 1024, MIB);
	struct ckpt_capture *cap = begin(ck, "layout");
	struct text a = { .bytes = "first object", .took = 0.05 };
	struct text b = { .bytes = "second" };
	struct ckpt_provider *group = ckpt_composite(64);
	uint8_t *host = pattern(300001, 1), *dev = pattern(1000003, 2), *out;
	struct ckpt_slow_device *device;
	uint8_t small[5] = "small";
	struct ckpt_stats st;
	size_t len;

	CHECK_EQ(ckpt_slow_device_new(200 * MIB, &device), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_object(serialise, freed, &a)), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_memory(host, 300001)), 0);
	CHECK_EQ(ckpt_composite_add(group, ckpt_slow(device, dev, 1000003)), 0);
	CHECK_EQ(ckpt_composite_add(group, ckpt_object(serialise, freed, &b)),
		 0);
	CHECK_EQ(ckpt_composite_add(group, ckpt_memory_copied(small, 5)), 0);
	CHECK_EQ(ckpt_add(cap, group), 0);
	memset(small, 0, 5);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_submit(cap), -EBUSY);
	CHECK_EQ(ckpt_fence(ck), 0);
	memset(host, 0xee, 300001);
	memset(dev, 0xee, 1000003);
	CHECK_EQ(ckpt_wait(cap, CKPT_NVME, -1), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_REMOTE, -1), -EOPNOTSUPP);
	CHECK_STR(ckpt_error(cap), "");
	ckpt_get_stats(cap, &st);
	CHECK_EQ(st.bytes[CKPT_DEVICE], 1000003);
	CHECK_EQ(st.bytes[CKPT_HOST], 300006);
	CHECK_EQ(st.bytes[CKPT_OBJECT], 18);
	CHECK(st.staged_max && st.staged_max <= MIB);
	CHECK_EQ(a.n_freed + b.n_freed, 2);

	free(host);
	free(dev);
	host = pattern(300001, 1);
	dev = pattern(1000003, 2);
	len = load(in_dir("layout"), &out);
	CHECK_EQ(len, 1300160 + 6);
	CHECK(!memcmp(out, host, 300001));
	CHECK(!memcmp(out + 300032, dev, 1000003));
	CHECK(!memcmp(out + 1300096, "small", 5));
	CHECK(!memcmp(out + 1300101, "first object", 12));
	CHECK(!memcmp(out + 1300160, "second", 6));
	ckpt_capture_free(cap);
	CHECK_EQ(ckpt_close(ck), 0);
	ckpt_slow_device_free(device);
	CHECK_EQ(entries(), 1);
	unlink(in_dir("layout"));
	free(host);
	free(dev);
	free(out);
}

/* Pages of a file that are in the page cache; 0 on what is no disk. */
static size_t cached_pages(const char *path, size_t len)
{
	unsigned char *in = calloc(len / 4096 + 1, 1);
	int fd = open(path, O_RDONLY);
	struct statfs fs;
	size_t n = 0;
	void *map;

	CHECK(fd >= 0 && in && !fstatfs(fd, &fs));
	map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED && !mincore(map, len, in));
	for (size_t i = 0; i <= (len - 1) / 4096; i++)
		n += in[i] & 1;
	munmap(map, len);
	close(fd);
	free(in);
	return fs.f_type == EXT4_SUPER_MAGIC || fs.f_type == XFS_SUPER_MAGIC
		       ? n
		       : 0;
}

/* From a device to a disk: whole pages past the page cache, wherever in a page
 * the parts begin and end; the rest of them through it. */
static void past_the_cache(void)
{
	static const size_t lens[] = { 3 * MIB + 1, 777, 2 * MIB, 4 * MIB - 64,
				       256 * 1024 + 4095 };
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
	struct ckpt_capture *cap = begin(ck, "direct");
	struct ckpt_slow_device *device;
	uint8_t *parts[5], *out, *at;
	size_t len;

	CHECK_EQ(ckpt_slow_device_new(4096 * MIB, &device), 0);
	for (unsigned i = 0; i < 5; i++) {
		parts[i] = pattern(lens[i], i);
		CHECK_EQ(ckpt_add(cap, ckpt_slow(device, parts[i], lens[i])),
			 0);
	}
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_NVME, -1), 0);
	CHECK(cached_pages(in_dir("direct"), 9 * MIB) < 64);
	len = load(in_dir("direct"), &out);
	at = out;
	for (unsigned i = 0; i < 5; i++) {
		CHECK((size_t)(at - out) + lens[i] <= len);
		CHECK(!memcmp(at, parts[i], lens[i]));
		at += lens[i];
		free(parts[i]);
	}
	CHECK_EQ(at - out, len);
	free(out);
	ckpt_capture_free(cap);
	CHECK_EQ(ckpt_close(ck), 0);
	ckpt_slow_device_free(device);
	unlink(in_dir("direct"));
}

/* Submit returns at once, the fence when the device is done, a failure is told
 * by one fence and by every wait. */
static void fence(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
	struct ckpt_capture *cap = begin(ck, "fence"), *bad = begin(ck, "bad");
	struct text failing = { .bytes = "", .err = -EDOM };
	uint8_t *dev = pattern(16 * MIB, 3);
	struct ckpt_slow_device *device;
	double t, blocked;

	CHECK_EQ(ckpt_slow_device_new(64 * MIB, &device), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 16 * MIB)), 0);
	t = now();
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK(now() - t < 0.05);
	CHECK_EQ(ckpt_wait(cap, CKPT_CAPTURED, 20), -ETIMEDOUT);
	CHECK(access(in_dir("fence"), F_OK) && errno == ENOENT);
	CHECK_EQ(ckpt_fence(ck), 0);
	blocked = now() - t;
	CHECK(blocked > 0.2 && blocked < 2);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_add(bad, ckpt_memory(dev, 16 * MIB)), 0);
	CHECK_EQ(ckpt_add(bad, ckpt_object(serialise, freed, &failing)), 0);
	CHECK_EQ(ckpt_submit(bad), 0);
	CHECK_EQ(ckpt_fence(ck), -EDOM);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_wait(bad, CKPT_CAPTURED, -1), -EDOM);
	CHECK_EQ(ckpt_wait(bad, CKPT_NVME, -1), -EDOM);
	CHECK(strstr(ckpt_error(bad), "/bad'"));
	CHECK(strstr(ckpt_error(bad), "object"));
	CHECK_EQ(failing.n_freed, 1);
	ckpt_capture_free(cap);
	ckpt_capture_free(bad);
	CHECK_EQ(ckpt_close(ck), 0);
	ckpt_slow_device_free(device);
	CHECK_EQ(entries(), 1);
	unlink(in_dir("fence"));
	free(dev);
}

/* Nobody waits, nobody holds it: the error is not lost. */
static void error_of_freed(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *cap = begin(ck, "no/such/dir");

	CHECK_EQ(ckpt_add(cap, ckpt_memory("x", 1)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	ckpt_capture_free(cap);
	CHECK_EQ(ckpt_close(ck), -ENOENT);
	CHECK_EQ(entries(), 0);

	/* Each by a fence of its own. */
	ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	for (int i = 0; i < 2; i++) {
		cap = begin(ck, "no/such/dir");
		CHECK_EQ(ckpt_add(cap, ckpt_memory("x", 1)), 0);
		CHECK_EQ(ckpt_submit(cap), 0);
		ckpt_capture_free(cap);
	}
	CHECK_EQ(ckpt_fence(ck), -ENOENT);
	CHECK_EQ(ckpt_fence(ck), -ENOENT);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_close(ck), 0);
}

/* Its directory is rotated away, or gets its final name. */
static void moved(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *cap[2];

	for (int i = 0; i < 2; i++) {
		CHECK(!mkdir(in_dir("step"), 0700));
		cap[i] = begin(ck, "step/a");
		CHECK_EQ(ckpt_add(cap[i], ckpt_memory("x", 1)), 0);
		CHECK_EQ(ckpt_submit(cap[i]), 0);
		CHECK_EQ(ckpt_wait(cap[i], CKPT_DRAM, -1), 0);
		CHECK(!rename(in_dir("step"), in_dir("done")));
		if (i == 0) {
			check_remove(in_dir("done"));
			CHECK_EQ(ckpt_wait(cap[i], CKPT_NVME, -1), 0);
		}
	}
	CHECK_EQ(ckpt_wait(cap[1], CKPT_NVME, -1), 0);
	CHECK_EQ(ckpt_close(ck), 0);
	check_remove(in_dir("done"));
	CHECK_EQ(entries(), 0);
}

/* Names that a process of the same number (another container's) has taken are
 * left alone; what it left when it died is cleared away. */
static void same_pid(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *cap = begin(ck, "same");
	static const struct timespec long_ago[2] = { { 1, 0 }, { 1, 0 } };
	int fds[40], n = 0;
	char name[64];

	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), ".same.ckpt-%ld-%d",
			 (long)getpid(), i);
		fds[i] = open(in_dir(name), O_CREAT | O_EXCL | O_WRONLY, 0600);
		CHECK(fds[i] >= 0);
		CHECK(!futimens(fds[i], long_ago));
		if (i % 2)
			CHECK(!flock(fds[i], LOCK_EX));
	}
	CHECK_EQ(ckpt_add(cap, ckpt_memory("x", 1)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_close(ck), 0);
	for (int i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), ".same.ckpt-%ld-%d",
			 (long)getpid(), i);
		n += !access(in_dir(name), F_OK);
		unlink(in_dir(name));
		close(fds[i]);
	}
	CHECK_EQ(n, 20);
	unlink(in_dir("same"));
	CHECK_EQ(entries(), 0);
}

static void cancel(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
	struct ckpt_capture *cap = begin(ck, "cancel");
	uint8_t *dev = pattern(16 * MIB, 3);
	struct ckpt_slow_device *device;
	double t = now();

	CHECK_EQ(ckpt_slow_device_new(4 * MIB, &device), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 16 * MIB)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	while (!entries())
		poll(NULL, 0, 1);
	ckpt_cancel(cap);
	CHECK(now() - t < 3);
	CHECK_EQ(entries(), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), -ECANCELED);
	CHECK_EQ(ckpt_fence(ck), 0); /* he who cancels knows */
	ckpt_capture_free(cap);

	/* And by the end of the engine, as asked. */
	CHECK_EQ(ckpt_close(ck), 0);
	ck = engine(CKPT_EXIT_ABORT, MIB, 4 * MIB);
	cap = begin(ck, "abort");
	CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 16 * MIB)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_close(ck), -ECANCELED);
	CHECK_EQ(entries(), 0);
	ckpt_slow_device_free(device);
	free(dev);
}

/* A user's own provider: says at the end that its source was changed. */
struct touchy {
	struct ckpt_provider base;
	bool given, changed;
	atomic_int *n_released;
};

static uint64_t touchy_size(const struct ckpt_provider *p)
{
	(void)p;
	return 3;
}

static int touchy_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		       struct ckpt_chunk *out)
{
	struct touchy *t = (struct touchy *)p;

	CHECK(max >= 3);
	if (kind != CKPT_HOST || t->given)
		return 0;
	t->given = true;
	*out = (struct ckpt_chunk){ .len = 3, .src = "abc" };
	return 1;
}

static int touchy_check(struct ckpt_provider *p)
{
	return ((struct touchy *)p)->changed ? -ESTALE : 0;
}

static void touchy_release(struct ckpt_provider *p)
{
	(*((struct touchy *)p)->n_released)++;
	free(p);
}

static const struct ckpt_provider_ops touchy_ops = {
	.name = "touchy",
	.size = touchy_size,
	.next = touchy_next,
	.check = touchy_check,
	.release = touchy_release,
};

static struct ckpt_provider *touchy(bool changed, atomic_int *n_released)
{
	struct touchy *t = calloc(1, sizeof(*t));

	CHECK(t);
	*t = (struct touchy){ { &touchy_ops }, false, changed, n_released };
	return &t->base;
}

static void own_provider(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *good = begin(ck, "good"),
			    *torn = begin(ck, "torn");
	atomic_int n_released = 0;

	CHECK_EQ(ckpt_add(good, touchy(false, &n_released)), 0);
	CHECK_EQ(ckpt_add(torn, touchy(true, &n_released)), 0);
	CHECK_EQ(ckpt_submit(good), 0);
	CHECK_EQ(ckpt_submit(torn), 0);
	CHECK_EQ(ckpt_fence(ck), -ESTALE);
	CHECK_EQ(ckpt_wait(good, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_wait(torn, CKPT_DRAM, -1), -ESTALE);
	CHECK_EQ(entries(), 1);
	CHECK_EQ(n_released, 2);
	CHECK_EQ(ckpt_add(good, touchy(false, &n_released)), -EBUSY);
	CHECK_EQ(n_released, 3);
	ckpt_capture_free(good);
	ckpt_capture_free(torn);
	CHECK_EQ(ckpt_close(ck), 0);
	unlink(in_dir("good"));
}

/* A forked child has no part in it, and does not disturb it. */
static void forked(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
	struct ckpt_capture *cap = begin(ck, "forked"), *mine;
	uint8_t *dev = pattern(8 * MIB, 5), *out;
	struct ckpt_slow_device *device;
	int status;
	pid_t pid;

	CHECK_EQ(ckpt_slow_device_new(32 * MIB, &device), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 8 * MIB)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	while (!entries())
		poll(NULL, 0, 1);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct ckpt *own;

		is_child = 1;
		alarm(20);
		CHECK_EQ(ckpt_fence(ck), -ECHILD);
		CHECK_EQ(ckpt_begin(ck, "x", &mine), -ECHILD);
		CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), -ECHILD);
		CHECK_EQ(ckpt_close(ck), 0);
		if (may_start_threads) {
			own = engine(CKPT_EXIT_DRAIN, 0, 0);
			mine = begin(own, "child");
			CHECK_EQ(ckpt_add(mine, ckpt_memory("child", 5)), 0);
			CHECK_EQ(ckpt_submit(mine), 0);
		}
		exit(0); /* drains */
	}
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(load(in_dir("forked"), &out), 8 * MIB);
	CHECK(!memcmp(out, dev, 8 * MIB));
	free(out);
	if (may_start_threads)
		CHECK_EQ(load(in_dir("child"), &out), 5);
	else
		out = NULL;
	ckpt_capture_free(cap);
	CHECK_EQ(ckpt_close(ck), 0);
	ckpt_slow_device_free(device);
	unlink(in_dir("forked"));
	unlink(in_dir("child"));
	CHECK_EQ(entries(), 0);
	free(dev);
	free(out);
}

/* Killed in the middle: not there, and the next one clears it away. */
static void one_more(const char *name)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *cap = begin(ck, name);

	CHECK_EQ(ckpt_add(cap, ckpt_memory("whole", 5)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_close(ck), 0);
}

static void make_old(void)
{
	static const struct timespec long_ago[2] = { { 1, 0 }, { 1, 0 } };
	DIR *d = opendir(dir);
	struct dirent *e;

	CHECK(d);
	while ((e = readdir(d)))
		if (strstr(e->d_name, ".ckpt-"))
			CHECK(!utimensat(dirfd(d), e->d_name, long_ago, 0));
	closedir(d);
}

/* What it left goes when it is old: a young one may be another container's,
 * for whose process no number is seen here, just before its rename. */
static void killed(void)
{
	pid_t pid = fork();
	struct ckpt_capture *cap;
	struct ckpt *ck;

	CHECK(pid >= 0);
	if (!pid) {
		struct ckpt_slow_device *device;
		uint8_t *dev = pattern(8 * MIB, 5);

		ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
		cap = begin(ck, "killed");
		CHECK_EQ(ckpt_slow_device_new(MIB, &device), 0);
		CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 8 * MIB)), 0);
		CHECK_EQ(ckpt_submit(cap), 0);
		while (!entries())
			poll(NULL, 0, 1);
		kill(getpid(), SIGKILL);
	}
	CHECK_EQ(waitpid(pid, NULL, 0), pid);
	CHECK_EQ(entries(), 1);
	CHECK(access(in_dir("killed"), F_OK) && errno == ENOENT);
	one_more("killed");
	CHECK_EQ(entries(), 2);
	make_old();
	one_more("killed");
	CHECK_EQ(entries(), 1);
	unlink(in_dir("killed"));
}

static void *close_it(void *arg)
{
	CHECK_EQ(ckpt_close(arg), 0);
	return NULL;
}

/* Descriptors of this process for temporary files of captures. */
static unsigned open_temps(void)
{
	DIR *d = opendir("/proc/self/fd");
	char target[PATH_MAX];
	struct dirent *e;
	unsigned n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		ssize_t len = readlinkat(dirfd(d), e->d_name, target,
					 sizeof(target) - 1);

		target[len > 0 ? len : 0] = 0;
		n += strstr(target, ".ckpt-") != NULL;
	}
	closedir(d);
	return n;
}

/* Also while it is closed: that may take as long as the captures do. */
static void forked_while_closing(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 4 * MIB);
	struct ckpt_capture *cap = begin(ck, "closing");
	uint8_t *dev = pattern(8 * MIB, 5);
	struct ckpt_slow_device *device;
	pthread_t closer;
	int status;
	pid_t pid;

	CHECK_EQ(ckpt_slow_device_new(16 * MIB, &device), 0);
	CHECK_EQ(ckpt_add(cap, ckpt_slow(device, dev, 8 * MIB)), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	while (!open_temps())
		poll(NULL, 0, 1);
	CHECK(!pthread_create(&closer, NULL, close_it, ck));
	poll(NULL, 0, 100); /* it is at it, or the test proves nothing */
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		is_child = 1;
		_exit(open_temps() ? 1 : 0);
	}
	CHECK(open_temps());
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK_EQ(status, 0);
	CHECK(!pthread_join(closer, NULL));
	ckpt_slow_device_free(device);
	unlink(in_dir("closing"));
	free(dev);
}

struct team {
	struct ckpt *ck;
	unsigned i;
};

static void *one_of_many(void *arg)
{
	struct team *t = arg;
	uint8_t *mem = pattern(3 * MIB + t->i, t->i), *out;
	char name[32];

	snprintf(name, sizeof(name), "many-%u", t->i);
	for (int round = 0; round < 4; round++) {
		struct ckpt_capture *cap;
		char path[PATH_MAX];

		snprintf(path, sizeof(path), "%s/%s", dir, name);
		CHECK_EQ(ckpt_begin(t->ck, path, &cap), 0);
		CHECK_EQ(ckpt_add(cap, ckpt_memory(mem, 3 * MIB + t->i)), 0);
		CHECK_EQ(ckpt_submit(cap), 0);
		CHECK_EQ(ckpt_fence(t->ck), 0);
		CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
		CHECK_EQ(load(path, &out), 3 * MIB + t->i);
		CHECK(!memcmp(out, mem, 3 * MIB + t->i));
		free(out);
		ckpt_capture_free(cap);
		unlink(path);
	}
	free(mem);
	return NULL;
}

static void several_at_once(void)
{
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, MIB, 2 * MIB);
	struct team team[6];
	pthread_t threads[6];

	for (unsigned i = 0; i < 6; i++) {
		team[i] = (struct team){ ck, i };
		CHECK(!pthread_create(&threads[i], NULL, one_of_many,
				      &team[i]));
	}
	for (unsigned i = 0; i < 6; i++)
		pthread_join(threads[i], NULL);
	CHECK_EQ(ckpt_close(ck), 0);
	CHECK_EQ(entries(), 0);
}

static void *small_ones(void *arg)
{
	struct team *t = arg;
	struct ckpt_capture *cap;
	char path[PATH_MAX];

	for (int i = 0; i < 300; i++) {
		snprintf(path, sizeof(path), "%s/small-%u-%d", dir, t->i,
			 i % 7);
		CHECK_EQ(ckpt_begin(t->ck, path, &cap), 0);
		CHECK_EQ(ckpt_add(cap, ckpt_memory_copied(path, 100)), 0);
		CHECK_EQ(ckpt_submit(cap), 0);
		CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
		ckpt_capture_free(cap);
	}
	return NULL;
}

/* One engine completes a file while another looks for what was left. */
static void many_in_one_directory(void)
{
	struct team team[4];
	pthread_t threads[4];

	for (unsigned i = 0; i < 4; i++) {
		team[i] = (struct team){ engine(CKPT_EXIT_DRAIN, 0, 0), i };
		CHECK(!pthread_create(&threads[i], NULL, small_ones, &team[i]));
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(ckpt_close(team[i].ck), 0);
	}
	CHECK_EQ(entries(), 28);
	check_remove(dir);
	CHECK(!mkdir(dir, 0700));
}

static void wrong_use(void)
{
	struct ckpt_options odd = { .options_len = sizeof(odd),
				    .chunk_len = 1000 };
	struct ckpt *ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	struct ckpt_capture *cap;

	CHECK_EQ(ckpt_open(&odd, &ck), -EINVAL);
	ck = engine(CKPT_EXIT_DRAIN, 0, 0);
	CHECK_EQ(ckpt_begin(ck, "", &cap), -EINVAL);
	CHECK_EQ(ckpt_begin(ck, "/tmp/..", &cap), -EINVAL);
	cap = begin(ck, "x");
	CHECK_EQ(ckpt_add(cap, NULL), -ENOMEM);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, 0), -EINVAL);
	CHECK_EQ(ckpt_add(cap, ckpt_composite(3)), 0);
	CHECK_EQ(ckpt_submit(cap), 0); /* an empty composite has no say */
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_close(ck), 0);
	unlink(in_dir("x"));
}

int main(void)
{
	dir = check_tmpdir();
	layout();
	fence();
	error_of_freed();
	moved();
	same_pid();
	cancel();
	own_provider();
	past_the_cache();
	forked();
	forked_while_closing();
	killed();
	several_at_once();
	many_in_one_directory();
	wrong_use();
	return 0;
}
