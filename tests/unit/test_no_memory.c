/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Constructors and layouts without memory: what they were given is freed
 * exactly once, and not by the caller.
 */
#include "layout_fixture.h"
#include "no_memory.h"

static int n_freed;

static void count(void *arg)
{
	(void)arg;
	n_freed++;
}

static int serialise(void *arg, const void **bytes, size_t *len)
{
	(void)arg;
	(void)bytes;
	(void)len;
	return -EIO;
}

static void owned(void)
{
	no_memory_at = 1;
	CHECK(!ckpt_memory_owned("x", 1, count, NULL));
	CHECK_EQ(n_freed, 1);
	no_memory_at = 1;
	CHECK(!ckpt_object(serialise, count, NULL));
	CHECK_EQ(n_freed, 2);
	no_memory_at = 1;
	CHECK(!ckpt_memory_copied("x", 1));
	no_memory_at = 1;
	CHECK(!ckpt_memory_owned("x", 1, NULL, NULL));
}

static int safetensors(int nth, struct ckpt_provider **out, int *n_released)
{
	static const uint64_t two = 2;
	struct ckpt_safetensors *st;

	CHECK_EQ(ckpt_safetensors_new(&st), 0);
	CHECK_EQ(ckpt_safetensors_add(st, "a", "U8", &two, 1,
				      watched(2, n_released)),
		 0);
	no_memory_at = nth;
	return ckpt_safetensors_finish(st, out);
}

static int torch(int nth, struct ckpt_provider **out, int *n_released)
{
	struct ckpt_torch *t;

	CHECK_EQ(ckpt_torch_new("root", &t), 0);
	CHECK_EQ(ckpt_torch_storage(t, "0", watched(2, n_released)), 0);
	CHECK_EQ(ckpt_torch_pickle(t, watched(2, n_released)), 0);
	no_memory_at = nth;
	return ckpt_torch_finish(t, out);
}

/* Each calloc of it fails once. */
static void layout(int (*build)(int, struct ckpt_provider **, int *),
		   int n_parts)
{
	struct ckpt_provider *p;

	for (int nth = 1;; nth++) {
		int n_released = 0, r = build(nth, &p, &n_released);

		if (no_memory_at) {
			CHECK_EQ(r, 0);
			CHECK(nth > 2);
			no_memory_at = 0;
			p->ops->release(p);
			return;
		}
		CHECK_EQ(r, -ENOMEM);
		CHECK_EQ(n_released, n_parts);
	}
}

int main(void)
{
	owned();
	layout(safetensors, 1);
	layout(torch, 2);
	return 0;
}
