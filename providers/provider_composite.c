/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children as one provider. A composite that is added to another hands its
 * children over, so whatever the nesting, a capture sees one flat list:
 *
 *   known sizes, in order | unknown sizes, in order, as they become known
 *
 * Order of layout and order of capture have nothing to do with each other: one
 * cursor for each kind walks the list. The children of unknown size get their
 * places while OBJECT is walked, those that have nothing of that kind (they
 * are made from all the others) while TRAILER is.
 */
#include "providers/composite.h"
#include "providers/cleanup.h"

#include <errno.h>

#define UNPLACED UINT64_MAX
#define FILE_LEN_MAX (UINT64_C(1) << 63)

struct child {
	struct ckpt_provider *p;
	size_t align;
	uint64_t off; /* in the file, or UNPLACED */
	uint64_t len; /* or CKPT_SIZE_UNKNOWN */
	bool known;   /* its size, from the start: immutable */
};

struct composite {
	struct ckpt_provider base;
	size_t align;
	struct child *children;
	size_t n, room;
	size_t cursor[CKPT_KINDS];
	uint64_t end; /* of what has its place */
	bool has_check, has_device;
	_Atomic(const char *) culprit;
};

static const struct ckpt_provider_ops composite_ops;

static struct composite *composite_of(struct ckpt_provider *p)
{
	return CONTAINER_OF(p, struct composite, base);
}

struct ckpt_provider *ckpt_composite(size_t align)
{
	struct composite *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->base.ops = &composite_ops;
	c->align = align;
	return &c->base;
}

static int make_room(struct composite *c, size_t more)
{
	size_t room = c->room ? c->room : 8;
	struct child *bigger;

	while (room < c->n + more)
		room *= 2;
	if (room == c->room)
		return 0;
	bigger = reallocarray(c->children, room, sizeof(*bigger));
	if (!bigger)
		return -ENOMEM;
	c->children = bigger;
	c->room = room;
	return 0;
}

static int add_leaf(struct composite *c, struct ckpt_provider *p, size_t align)
{
	int r = make_room(c, 1);

	if (r == 0)
		c->children[c->n++] = (struct child){ .p = p, .align = align };
	return r;
}

/* The first child of a group keeps to its own alignment, as the rest do. */
static int take_over(struct composite *c, struct composite *from)
{
	int r = make_room(c, from->n);

	if (r < 0)
		return r;
	for (size_t i = 0; i < from->n; i++)
		c->children[c->n++] = from->children[i];
	from->n = 0;
	from->base.ops->release(&from->base);
	return 0;
}

int ckpt_composite_add(struct ckpt_provider *composite,
		       struct ckpt_provider *child)
{
	struct composite *c;
	int r;

	if (!child)
		return -ENOMEM;
	if (!composite || composite->ops != &composite_ops ||
	    composite == child) {
		child->ops->release(child);
		return -EINVAL;
	}
	c = composite_of(composite);
	if (child->ops == &composite_ops)
		r = take_over(c, composite_of(child));
	else
		r = add_leaf(c, child, c->align);
	if (r < 0)
		child->ops->release(child);
	return r;
}

/* ---- places ------------------------------------------------------------ */

static int place(struct composite *c, struct child *ch)
{
	uint64_t off = (c->end + ch->align - 1) & ~(uint64_t)(ch->align - 1);

	if (off < c->end || off > FILE_LEN_MAX)
		return -EINVAL;
	ch->off = off;
	return 0;
}

static int ends_at(struct composite *c, struct child *ch, uint64_t len)
{
	if (len > FILE_LEN_MAX - ch->off)
		return -EINVAL;
	ch->len = len;
	c->end = ch->off + len;
	return 0;
}

int composite_place(struct ckpt_provider *root, uint64_t *known_len)
{
	struct composite *c = composite_of(root);

	for (size_t i = 0; i < c->n; i++) {
		struct child *ch = &c->children[i];
		uint64_t len = ch->p->ops->size(ch->p);
		int r = 0;

		if (!ch->align || (ch->align & (ch->align - 1)))
			return -EINVAL;
		c->has_check |= ch->p->ops->check != NULL;
		c->has_device |= ch->p->ops->copy != NULL;
		ch->off = UNPLACED;
		ch->len = len;
		ch->known = len != CKPT_SIZE_UNKNOWN;
		if (len != CKPT_SIZE_UNKNOWN)
			r = place(c, ch);
		if (r == 0 && len != CKPT_SIZE_UNKNOWN)
			r = ends_at(c, ch, len);
		if (r < 0)
			return r;
	}
	*known_len = c->end;
	return 0;
}

uint64_t composite_len(struct ckpt_provider *root)
{
	return composite_of(root)->end;
}

/* ---- the next chunk ---------------------------------------------------- */

/* A child whose size was unknown has begun to speak: now it is. */
static int settle_child(struct composite *c, struct child *ch)
{
	uint64_t len = ch->p->ops->size(ch->p);
	int r;

	if (len == CKPT_SIZE_UNKNOWN)
		return -EFAULT;
	r = place(c, ch);
	return r < 0 ? r : ends_at(c, ch, len);
}

/* Nothing of this kind from a child without a place: at the last kind it is
 * empty, or has broken its word. */
static int child_ended(struct composite *c, struct child *ch,
		       enum ckpt_kind kind)
{
	uint64_t len;

	if (ch->known || kind < CKPT_OBJECT || ch->off != UNPLACED)
		return 0;
	len = ch->p->ops->size(ch->p);
	if (len == CKPT_SIZE_UNKNOWN)
		return kind == CKPT_TRAILER ? -EFAULT : 0;
	return settle_child(c, ch);
}

static int child_next(struct composite *c, struct child *ch,
		      enum ckpt_kind kind, size_t max, struct placed_chunk *out)
{
	struct ckpt_chunk *k = &out->chunk;
	int r = ch->p->ops->next(ch->p, kind, max, k);

	if (r <= 0)
		return r < 0 ? r : child_ended(c, ch, kind);
	if (!ch->known && kind < CKPT_OBJECT)
		return -EFAULT; /* it has no place yet */
	if (!ch->known && ch->off == UNPLACED) {
		r = settle_child(c, ch);
		if (r < 0)
			return r;
	}
	if (!k->len || k->len > max || k->off > ch->len ||
	    k->len > ch->len - k->off ||
	    (kind == CKPT_DEVICE ? !ch->p->ops->copy : !k->src))
		return -EFAULT;
	k->from = ch->p;
	out->off = ch->off + k->off;
	return 1;
}

int composite_next(struct ckpt_provider *root, enum ckpt_kind kind, size_t max,
		   struct placed_chunk *out)
{
	struct composite *c = composite_of(root);
	size_t *at = &c->cursor[kind];

	for (; *at < c->n; (*at)++) {
		struct child *ch = &c->children[*at];
		int r = child_next(c, ch, kind, max, out);

		if (r < 0)
			c->culprit = ch->p->ops->name;
		if (r != 0)
			return r;
	}
	return 0;
}

bool composite_has_check(struct ckpt_provider *root)
{
	return composite_of(root)->has_check;
}

bool composite_has_device(struct ckpt_provider *root)
{
	return composite_of(root)->has_device;
}

int composite_check(struct ckpt_provider *root)
{
	struct composite *c = composite_of(root);

	for (size_t i = 0; i < c->n; i++) {
		struct ckpt_provider *p = c->children[i].p;
		int r = p->ops->check ? p->ops->check(p) : 0;

		if (r < 0) {
			c->culprit = p->ops->name;
			return r;
		}
	}
	return 0;
}

const char *composite_culprit(struct ckpt_provider *root)
{
	return composite_of(root)->culprit;
}

/* ---- as a provider ----------------------------------------------------- */

static uint64_t composite_size(const struct ckpt_provider *p)
{
	(void)p;
	return CKPT_SIZE_UNKNOWN;
}

/* A composite is always taken apart before it is asked. */
static int composite_not_asked(struct ckpt_provider *p, enum ckpt_kind kind,
			       size_t max, struct ckpt_chunk *out)
{
	(void)p;
	(void)kind;
	(void)max;
	(void)out;
	return -EINVAL;
}

static void composite_release(struct ckpt_provider *p)
{
	struct composite *c = composite_of(p);

	for (size_t i = 0; i < c->n; i++)
		c->children[i].p->ops->release(c->children[i].p);
	free(c->children);
	free(c);
}

static const struct ckpt_provider_ops composite_ops = {
	.name = "composite",
	.size = composite_size,
	.next = composite_not_asked,
	.release = composite_release,
};
