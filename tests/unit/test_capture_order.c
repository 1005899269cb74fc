/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libckpt: what comes before what, where a provider of the test holds one step
 * up: names are given in the order of submission.
 */
#include "providers/ckpt.h"

#include <semaphore.h>
#include <stdbool.h>

#include "check.h"

static const char *path(const char *name)
{
	static char p[PATH_MAX + 64];

	snprintf(p, sizeof(p), "%s/%s", check_dir, name);
	return p;
}

/* A device whose bytes arrive at once, and whose filled() waits to be let go:
 * captured, but not in the file yet. */
struct held {
	struct ckpt_provider base;
	char byte;
	bool given;
	sem_t *reached, *go;
};

static uint64_t held_size(const struct ckpt_provider *p)
{
	(void)p;
	return 1;
}

static int held_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		     struct ckpt_chunk *out)
{
	struct held *h = (struct held *)p;

	(void)max;
	if (kind != CKPT_DEVICE || h->given)
		return 0;
	h->given = true;
	*out = (struct ckpt_chunk){ .len = 1 };
	return 1;
}

static int held_copy(struct ckpt_provider *p, const struct ckpt_chunk *c,
		     void *dst, ckpt_copied *done, void *arg)
{
	(void)c;
	*(char *)dst = ((struct held *)p)->byte;
	done(arg, 0);
	return 0;
}

static void held_filled(struct ckpt_provider *p, const struct ckpt_chunk *c,
			const void *bytes)
{
	struct held *h = (struct held *)p;

	(void)c;
	(void)bytes;
	sem_post(h->reached);
	sem_wait(h->go);
}

static void held_release(struct ckpt_provider *p)
{
	free(p);
}

static const struct ckpt_provider_ops held_ops = {
	.name = "held",
	.size = held_size,
	.next = held_next,
	.copy = held_copy,
	.filled = held_filled,
	.release = held_release,
};

static struct ckpt_provider *held(char byte, sem_t *reached, sem_t *go)
{
	struct held *h = calloc(1, sizeof(*h));

	CHECK(h);
	*h = (struct held){ { &held_ops }, byte, false, reached, go };
	return &h->base;
}

static struct ckpt_capture *submit(struct ckpt *ck, const char *name,
				   struct ckpt_provider *p)
{
	struct ckpt_capture *cap;

	CHECK_EQ(ckpt_begin(ck, path(name), &cap), 0);
	CHECK_EQ(ckpt_add(cap, p), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	return cap;
}

static char content(const char *name)
{
	int fd = open(path(name), O_RDONLY);
	char c = 0;

	CHECK(fd >= 0);
	CHECK_EQ(read(fd, &c, 1), 1);
	close(fd);
	return c;
}

/* Of two saves of one name the last one stays, however late the first is; one
 * that has failed holds nobody up. */
static void names_in_order(void)
{
	struct ckpt_capture *cap[3];
	struct ckpt *ck;
	sem_t at, go;

	sem_init(&at, 0, 0);
	sem_init(&go, 0, 0);
	CHECK_EQ(ckpt_open(NULL, &ck), 0);
	cap[0] = submit(ck, "latest", held('1', &at, &go));
	sem_wait(&at);
	CHECK_EQ(ckpt_fence(ck), 0);
	cap[1] = submit(ck, "no/such/dir", ckpt_memory("x", 1));
	cap[2] = submit(ck, "latest", ckpt_memory("3", 1));
	CHECK_EQ(ckpt_wait(cap[1], CKPT_DRAM, -1), -ENOENT);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_wait(cap[2], CKPT_DRAM, 300), -ETIMEDOUT);
	sem_post(&go);
	CHECK_EQ(ckpt_wait(cap[2], CKPT_DRAM, -1), 0);
	CHECK_EQ(content("latest"), '3');
	CHECK_EQ(ckpt_wait(cap[0], CKPT_DRAM, 0), 0);
	CHECK_EQ(ckpt_close(ck), 0);
	CHECK_EQ(content("latest"), '3');
}

/* One that was cancelled, too. */
static void cancelled_in_between(void)
{
	struct ckpt_capture *first, *last;
	struct ckpt *ck;
	sem_t at, go;

	sem_init(&at, 0, 0);
	sem_init(&go, 0, 2);
	CHECK_EQ(ckpt_open(NULL, &ck), 0);
	first = submit(ck, "a", held('1', &at, &go));
	last = submit(ck, "b", held('2', &at, &go));
	ckpt_cancel(first);
	CHECK_EQ(ckpt_wait(last, CKPT_DRAM, -1), 0);
	CHECK_EQ(content("b"), '2');
	CHECK_EQ(ckpt_close(ck), 0);
}

int main(void)
{
	check_tmpdir();
	names_in_order();
	cancelled_in_between();
	return 0;
}
