/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory as it lies: borrowed, handed over, or copied. The bytes of a
 * chunk are the memory itself.
 */
#include <string.h>

#include "providers/ckpt.h"
#include "providers/cleanup.h"

struct memory {
	struct ckpt_provider base;
	const uint8_t *bytes;
	size_t len, at;
	void (*free_fn)(void *arg);
	void *arg;
};

static const struct ckpt_provider_ops memory_ops;

struct ckpt_provider *ckpt_memory_owned(const void *bytes, size_t len,
					void (*free_fn)(void *arg), void *arg)
{
	struct memory *m = calloc(1, sizeof(*m));

	if (!m) {
		if (free_fn)
			free_fn(arg);
		return NULL;
	}
	*m = (struct memory){ .base.ops = &memory_ops,
			      .bytes = bytes,
			      .len = len,
			      .free_fn = free_fn,
			      .arg = arg };
	return &m->base;
}

struct ckpt_provider *ckpt_memory(const void *bytes, size_t len)
{
	return ckpt_memory_owned(bytes, len, NULL, NULL);
}

struct ckpt_provider *ckpt_memory_copied(const void *bytes, size_t len)
{
	void *copy = malloc(len ? len : 1);

	if (!copy)
		return NULL;
	memcpy(copy, bytes, len);
	return ckpt_memory_owned(copy, len, free, copy);
}

static uint64_t memory_size(const struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct memory, base)->len;
}

static int memory_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		       struct ckpt_chunk *out)
{
	struct memory *m = CONTAINER_OF(p, struct memory, base);
	size_t left;

	if (kind != CKPT_HOST)
		return 0;
	left = m->len - m->at;
	if (!left)
		return 0;
	*out = (struct ckpt_chunk){ .off = m->at,
				    .len = left < max ? left : max,
				    .src = m->bytes + m->at };
	m->at += out->len;
	return 1;
}

static void memory_release(struct ckpt_provider *p)
{
	struct memory *m = CONTAINER_OF(p, struct memory, base);

	if (m->free_fn)
		m->free_fn(m->arg);
	free(m);
}

static const struct ckpt_provider_ops memory_ops = {
	.name = "memory",
	.size = memory_size,
	.next = memory_next,
	.release = memory_release,
};
