/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An object that has no bytes yet: a callback serialises it when its turn
 * comes, on a thread of the engine, while tensors stream.
 */
#include <stdbool.h>

#include "providers/ckpt.h"
#include "providers/cleanup.h"

struct object {
	struct ckpt_provider base;
	ckpt_serialise *serialise;
	void (*free_fn)(void *arg);
	void *arg;
	const uint8_t *bytes;
	size_t len, at;
	bool done; /* serialise has run */
};

static const struct ckpt_provider_ops object_ops;

struct ckpt_provider *ckpt_object(ckpt_serialise *serialise,
				  void (*free_fn)(void *arg), void *arg)
{
	struct object *o = calloc(1, sizeof(*o));

	if (!o) {
		if (free_fn)
			free_fn(arg);
		return NULL;
	}
	*o = (struct object){ .base.ops = &object_ops,
			      .serialise = serialise,
			      .free_fn = free_fn,
			      .arg = arg };
	return &o->base;
}

static uint64_t object_size(const struct ckpt_provider *p)
{
	struct object *o = CONTAINER_OF(p, struct object, base);

	return o->done ? o->len : CKPT_SIZE_UNKNOWN;
}

static int object_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		       struct ckpt_chunk *out)
{
	struct object *o = CONTAINER_OF(p, struct object, base);
	const void *bytes = NULL;
	size_t len = 0, left;
	int r;

	if (kind != CKPT_OBJECT)
		return 0;
	if (!o->done) {
		r = o->serialise(o->arg, &bytes, &len);
		if (r < 0)
			return r;
		o->bytes = bytes;
		o->len = len;
		o->done = true;
	}
	left = o->len - o->at;
	if (!left)
		return 0;
	*out = (struct ckpt_chunk){ .off = o->at,
				    .len = left < max ? left : max,
				    .src = o->bytes + o->at };
	o->at += out->len;
	return 1;
}

static void object_release(struct ckpt_provider *p)
{
	struct object *o = CONTAINER_OF(p, struct object, base);

	if (o->free_fn)
		o->free_fn(o->arg);
	free(o);
}

static const struct ckpt_provider_ops object_ops = {
	.name = "object",
	.size = object_size,
	.next = object_next,
	.release = object_release,
};
