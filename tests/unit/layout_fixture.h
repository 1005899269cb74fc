/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of file layouts share: one file, saved and read back. */
#ifndef LAYOUT_FIXTURE_H
#define LAYOUT_FIXTURE_H

#include "providers/layout.h"

#include "check.h"

/* Capture p as a file of its own; its bytes, free(). */
__attribute__((unused)) static size_t layout_save(struct ckpt_provider *p,
						  uint8_t **out)
{
	struct ckpt_options o = { .options_len = sizeof(o),
				  .chunk_len = 4096,
				  .staging_len = 4096 * 8 };
	struct ckpt *ck;
	struct ckpt_capture *cap;
	char path[PATH_MAX + 8];
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/file", check_dir);
	CHECK_EQ(ckpt_open(&o, &ck), 0);
	CHECK_EQ(ckpt_begin(ck, path, &cap), 0);
	CHECK_EQ(ckpt_add(cap, p), 0);
	CHECK_EQ(ckpt_submit(cap), 0);
	CHECK_EQ(ckpt_fence(ck), 0);
	CHECK_EQ(ckpt_wait(cap, CKPT_DRAM, -1), 0);
	CHECK_EQ(ckpt_close(ck), 0);

	fd = open(path, O_RDONLY);
	CHECK(fd >= 0 && !fstat(fd, &st));
	*out = malloc((size_t)st.st_size + 1);
	CHECK(*out);
	CHECK_EQ(read(fd, *out, (size_t)st.st_size), st.st_size);
	(*out)[st.st_size] = 0;
	close(fd);
	return (size_t)st.st_size;
}

__attribute__((unused)) static uint64_t get(const uint8_t *at, size_t len)
{
	uint64_t value = 0;

	while (len--)
		value = value << 8 | at[len];
	return value;
}

/* A provider that only looks whether it is released. */
struct watched {
	struct ckpt_provider base;
	uint64_t size;
	int *n_released;
};

static uint64_t watched_size(const struct ckpt_provider *p)
{
	return ((const struct watched *)p)->size;
}

static int watched_next(struct ckpt_provider *p, enum ckpt_kind kind,
			size_t max, struct ckpt_chunk *out)
{
	(void)p;
	(void)kind;
	(void)max;
	(void)out;
	return 0; /* a hole */
}

static void watched_release(struct ckpt_provider *p)
{
	++*((struct watched *)p)->n_released;
	free(p);
}

static const struct ckpt_provider_ops watched_ops = {
	.name = "watched",
	.size = watched_size,
	.next = watched_next,
	.release = watched_release,
};

static struct ckpt_provider *watched(uint64_t size, int *n_released)
{
	struct watched *w = calloc(1, sizeof(*w));

	CHECK(w);
	w->base.ops = &watched_ops;
	w->size = size;
	w->n_released = n_released;
	return &w->base;
}

#endif
