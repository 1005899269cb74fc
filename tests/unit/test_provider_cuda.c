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
	failing();
	return 0;
}
#endif
