/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes behind reader_pickle.h, for the machine that makes them. Internal.
 * Errors: -E2BIG beyond the pickle's budget, -ENOMEM.
 */
#ifndef CKPT_PROVIDERS_READER_PICKLE_GRAPH_H
#define CKPT_PROVIDERS_READER_PICKLE_GRAPH_H

#include "providers/reader_pickle.h"

struct node {
	uint32_t kind;
	union {
		struct {
			uint32_t low, high;
		} number;
		struct {
			uint32_t off, len;
		} text;
		struct {
			uint32_t module, module_len, name, name_len;
		} global;
		struct {
			uint32_t first, n; /* in refs */
		} tuple;
		struct {
			uint32_t head, tail; /* chunks in refs; 0: none */
		} items;
		struct {
			uint32_t call, args, state, items;
		} object;
	};
};

/* refs holds the tuples' members, and chunks of containers: the next chunk
 * (0: none), how many, the numbers. */
struct array {
	void *at;
	uint32_t n;
	uint32_t room;
};

struct pickle {
	const uint8_t *buf;
	size_t len;
	size_t memory; /* what is left of the budget */
	struct array nodes;
	struct array refs;
	uint32_t root;
};

/* The fixed nodes. */
enum { NODE_NONE = 1, NODE_TRUE, NODE_FALSE, NODE_EMPTY, NODE_OTHER };

static inline uint32_t number_at(const struct array *a, uint32_t i)
{
	return i < a->n ? ((const uint32_t *)a->at)[i] : 0;
}

static inline struct node *node_at(const struct pickle *p, uint32_t ref)
{
	return (struct node *)p->nodes.at + (ref < p->nodes.n ? ref : 0);
}

static inline bool is_object(uint32_t kind)
{
	return kind == PICKLE_REDUCE || kind == PICKLE_NEWOBJ;
}

/* Room for `more` members of `elem` bytes; at is set also where that is 0. */
MUST_CHECK int pickle_reserve(struct pickle *p, struct array *a, size_t elem,
			      size_t more);

/* One more number in an array of them. */
MUST_CHECK int pickle_push_number(struct pickle *p, struct array *a,
				  uint32_t value);

/* A copy of node; *ref is its number. */
MUST_CHECK int pickle_node_new(struct pickle *p, const struct node *node,
			       uint32_t *ref);

/* The fixed nodes, before all others. */
MUST_CHECK int pickle_make_fixed(struct pickle *p);

/* Put n numbers at the end of a list, set or dict. */
MUST_CHECK int pickle_items_add(struct pickle *p, uint32_t container,
				const uint32_t *from, uint32_t n);

/*
 * The container of that kind which SETITEMS and APPENDS on `target` mean; an
 * object gets one when it is first needed.
 *
 *   -ENOMSG  there is none
 */
MUST_CHECK int pickle_container(struct pickle *p, uint32_t target,
				enum pickle_kind kind, uint32_t *out);

#endif
