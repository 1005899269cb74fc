/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA provider with an imitated driver (tests/fake/cuda.c, which aborts if
 * a rule of the real one is broken): bytes arrive at any alignment, pinned or
 * bounced, batches are waited for and not single copies, nothing stays
 * registered, a failing device fails the capture.
 */
#include "providers/ckpt.h"

#include <poll.h>
#include <pthread.h>

#include "check.h"
#include "ckpt_config.h"
#include "no_memory.h"

#if !CKPT_HAVE_CUDA
int main(void)
{
	struct ckpt_provider *p;

	CHECK_EQ(ckpt_cuda("x", 1, 0, NULL, &p), -EOPNOTSUPP);
	SKIP("this build has no CUDA");
}
#else
#include "fake/cuda.h"

#define MIB ((size_t)1 << 20)

static const char *dir;

static uint8_t *device_pattern(size_t len, unsigned seed)
{
	uint8_t *p = fake_cuda_alloc(len);

	CHECK(p);
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)((i * 2654435761u + seed) >> 13);
	return p;
}

static void add(struct ckpt_capture *cap, const uint8_t *p, size_t len)
{
	struct ckpt_provider *out = NULL;

	CHECK_EQ(ckpt_cuda(p, len, 0, NULL, &out), 0);
	CHECK_EQ(ckpt_add(cap, out), 0);
}

static void same(const char *path, const uint8_t *const *parts,
		 const size_t *lens, size_t n)
{
	int fd = open(path, O_RDONLY);
	uint8_t *buf = malloc(40 * MIB);

	CHECK(fd >= 0 && buf);
	for (size_t i = 0; i < n; i++) {
		CHECK_EQ(read(fd, buf, lens[i]), lens[i]);
		CHECK(!memcmp(buf, parts[i], lens[i]));
	}
	CHECK_EQ(read(fd, buf, 1), 0);
	free(buf);
	close(fd);
}

static void captured(const struct ckpt_options *o, const char *name)
{
	static const size_t lens[] = { 20 * MIB + 17, 1,   5000,
				       33 * MIB,      100, MIB + 4095 };
	const uint8_t *parts[6];
	char path[PATH_MAX];
	struct ckpt *ck;
	struct ckpt_capture *cap;
	int syncs = fake_cuda.n_syncs, copies = fake_cuda.n_copies;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	CHECK_EQ(ckpt_open(o, &ck), 0);
	CHECK_EQ(ckpt_begin(ck, path, &cap), 0);
	for (unsigned i = 0; i < 6; i++) {
		parts[i] = device_pattern(lens[i], i);
		add(cap, parts[i], lens[i]);
	}
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	same(path, parts, lens, 6);
	CHECK_EQ(fake_cuda.n_registered, 0);
	CHECK(fake_cuda.n_syncs - syncs < fake_cuda.n_copies - copies);
	CHECK_EQ(ckpt_close(ck), 0);
	unlink(path);
}

static void copied(void *arg, int err)
{
	CHECK_EQ(err, 0);
	__atomic_add_fetch((int *)arg, 1, __ATOMIC_SEQ_CST);
}

/* As the engine does on a mapping: places of any alignment, neighbours that
 * share a page, many more in flight than there are buffers. */
static void any_alignment(void)
{
	size_t len = 64 * MIB + 777;
	uint8_t *src = device_pattern(len, 9), *buf = malloc(len + 8192);
	struct ckpt_provider *p;
	struct ckpt_chunk c;
	int n = 0, done = 0;

	CHECK(buf);
	CHECK_EQ(ckpt_cuda(src, len, 0, NULL, &p), 0);
	while (p->ops->next(p, CKPT_DEVICE, MIB + 12345, &c) > 0) {
		CHECK_EQ(p->ops->copy(p, &c, buf + 4099 + c.off, copied, &done),
			 0);
		n++;
	}
	CHECK_EQ(p->ops->kick(p), 0);
	while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < n)
		poll(NULL, 0, 1);
	CHECK(!memcmp(buf + 4099, src, len));
	CHECK_EQ(fake_cuda.n_registered, 0);
	p->ops->release(p);
	free(buf);
}

static void *make_one(void *src)
{
	struct ckpt_provider *p;

	CHECK_EQ(ckpt_cuda(src, MIB, 0, NULL, &p), 0);
	p->ops->release(p);
	return NULL;
}

/* The caller's stream takes its time: copies go on meanwhile. */
static void slow_to_order(void)
{
	uint8_t *src = device_pattern(MIB, 3), *buf = malloc(MIB);
	struct ckpt_provider *p;
	struct ckpt_chunk c;
	pthread_t thread;
	int done = 0;

	CHECK(buf);
	CHECK_EQ(ckpt_cuda(src, MIB, 0, NULL, &p), 0);
	fake_cuda.hold_record = true;
	CHECK(!pthread_create(&thread, NULL, make_one, src));
	CHECK_SOON(fake_cuda.n_held == 1);
	CHECK_EQ(p->ops->next(p, CKPT_DEVICE, MIB, &c), 1);
	CHECK_EQ(p->ops->copy(p, &c, buf, copied, &done), 0);
	CHECK_EQ(p->ops->kick(p), 0);
	CHECK_SOON(__atomic_load_n(&done, __ATOMIC_SEQ_CST) == 1);
	CHECK_EQ(fake_cuda.n_held, 1);
	fake_cuda.hold_record = false;
	pthread_join(thread, NULL);
	p->ops->release(p);
	free(buf);
}

struct end {
	atomic_int n, err;
};

static void ended(void *arg, int err)
{
	struct end *end = arg;

	end->err = err;
	end->n++;
}

/* n copies of len bytes, next to each other, at no whole page. */
static struct ckpt_provider *copies(int n, size_t len, uint8_t *buf,
				    struct end *end)
{
	uint8_t *src = device_pattern((size_t)n * len, 5);
	struct ckpt_provider *p;
	struct ckpt_chunk c;

	CHECK_EQ(ckpt_cuda(src, (size_t)n * len, 0, NULL, &p), 0);
	while (p->ops->next(p, CKPT_DEVICE, len, &c) > 0)
		CHECK_EQ(p->ops->copy(p, &c, buf + 100 + c.off, ended, end), 0);
	return p;
}

/* Somebody waits for the stream; nobody was told before. */
static void all_end(struct end *end, int n, int err, int n_syncs_before)
{
	CHECK_SOON(fake_cuda.n_syncs > n_syncs_before);
	CHECK_EQ(end->n, 0);
	fake_cuda.hold_copies = false;
	CHECK_SOON(end->n == n);
	CHECK_EQ(end->err, err);
	CHECK_EQ(fake_cuda.n_registered, 0);
}

/* The nth piece of a copy is refused: what is on the stream already goes on
 * storing, so the end comes behind that, and nothing is stored after it. */
static void half_queued(int nth, size_t len)
{
	struct end end = { 0 };
	uint8_t *buf = aligned_alloc(4096, 10 * MIB);
	int syncs = fake_cuda.n_syncs;
	struct ckpt_provider *p;

	CHECK(buf);
	memset(buf, 0, 10 * MIB);
	fake_cuda.hold_copies = true;
	fake_cuda.fail_copy = nth;
	p = copies(1, len, buf, &end);
	CHECK_EQ(fake_cuda.fail_copy, 0);
	CHECK_EQ(p->ops->kick(p), 0);
	all_end(&end, 1, -EIO, syncs);
	CHECK(!buf[100] && !memcmp(buf + 100, buf + 101, 3000));
	p->ops->release(p);
	free(buf);
}

/* What was queued ends also if it cannot be kicked. */
static void unkickable(atomic_int *call)
{
	struct end end = { 0 };
	uint8_t *buf = malloc(4 * MIB);
	int syncs = fake_cuda.n_syncs;
	struct ckpt_provider *p;

	CHECK(buf);
	fake_cuda.hold_copies = true;
	p = copies(3, MIB + 10000, buf, &end);
	*call = 1;
	(void)!p->ops->kick(p);
	CHECK_EQ(*call, 0);
	all_end(&end, 3, -EIO, syncs);
	p->ops->release(p);
	free(buf);
}

static void kick_without_memory(void)
{
	struct end end = { 0 };
	uint8_t *buf = malloc(2 * MIB);
	struct ckpt_provider *p = copies(1, MIB, buf, &end);

	CHECK(buf);
	no_memory_at = 1;
	CHECK_EQ(p->ops->kick(p), 0);
	no_memory_at = 0;
	CHECK_SOON(end.n == 1);
	CHECK_EQ(end.err, 0);
	p->ops->release(p);
	free(buf);
}

/* Two chunks: the nth of such calls fails the capture, and nobody waits. */
static void failing_call(atomic_int *call, int nth)
{
	struct ckpt_capture *cap;
	struct ckpt *ck;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/failing-call", dir);
	CHECK_EQ(ckpt_open(NULL, &ck), 0);
	CHECK_EQ(ckpt_begin(ck, path, &cap), 0);
	add(cap, device_pattern(16 * MIB, 1), 16 * MIB);
	*call = nth;
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_fence(ck), -EIO);
	CHECK_EQ(*call, 0);
	CHECK_EQ(fake_cuda.n_registered, 0);
	CHECK(access(path, F_OK) && errno == ENOENT);
	CHECK_EQ(ckpt_close(ck), 0);
}

static void failing(void)
{
	struct ckpt_capture *cap;
	struct ckpt *ck;
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/failing", dir);
	fake_cuda.fail_sync = true;
	CHECK_EQ(ckpt_open(NULL, &ck), 0);
	CHECK_EQ(ckpt_begin(ck, path, &cap), 0);
	add(cap, device_pattern(20 * MIB, 1), 20 * MIB);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_fence(ck), -EIO);
	CHECK(strstr(ckpt_error(cap), "device"));
	CHECK_EQ(fake_cuda.n_registered, 0);
	CHECK(access(path, F_OK) && errno == ENOENT);
	CHECK_EQ(ckpt_close(ck), 0);
	fake_cuda.fail_sync = false;
}

int main(void)
{
	struct ckpt_options odd = { .options_len = sizeof(odd),
				    .chunk_len = 3 * MIB + 4096,
				    .staging_len = 8 * MIB };
	struct ckpt_provider *p;

	dir = check_tmpdir();
	CHECK_EQ(ckpt_cuda("host", 4, 0, NULL, &p), -EINVAL);
	CHECK_EQ(ckpt_cuda("host", 4, 7, NULL, &p), -ENODEV);
	captured(NULL, "pinned");
	captured(&odd, "odd");
	fake_cuda.fail_register = true;
	captured(NULL, "bounced");
	captured(&odd, "bounced-odd");
	fake_cuda.fail_register = false;
	any_alignment();
	slow_to_order();
	half_queued(2, MIB + 10000);
	half_queued(3, MIB + 10000);
	fake_cuda.fail_register = true;
	half_queued(2, 9 * MIB);
	fake_cuda.fail_register = false;
	unkickable(&fake_cuda.fail_push);
	unkickable(&fake_cuda.fail_record);
	kick_without_memory();
	for (int i = 1; i <= 3; i++) /* two copies, then the kick */
		failing_call(&fake_cuda.fail_push, i);
	failing_call(&fake_cuda.fail_copy, 2);
	failing_call(&fake_cuda.fail_record, 1);
	failing();
	return 0;
}
#endif
