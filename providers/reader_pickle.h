/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Python pickles, read but never run: a pickle is a program, and this is a
 * machine for it whose every instruction only writes down what was asked.
 * "Call f(x)" becomes a node that says so. The result is a graph of nodes,
 * each known by a number; the reader of a format picks from it what it knows.
 *
 * Protocols 2 to 5 (pickletools of CPython); what those of state dicts never
 * use (the extension registry, buffers out of band, text numbers) is refused.
 *
 * The graph may share nodes and may have cycles: whoever walks it bounds his
 * steps and his depth. Questions about a node that is of another kind have
 * harmless answers: false, 0, PICKLE_NOTHING.
 *
 * Ownership: the pickle points into buf, which must outlive it. Threads: any
 * number of readers.
 */
#ifndef CKPT_PROVIDERS_READER_PICKLE_H
#define CKPT_PROVIDERS_READER_PICKLE_H

#include <stdbool.h>

#include "providers/compiler.h"

enum pickle_kind {
	PICKLE_NOTHING = 0, /* no such node; number 0 */
	PICKLE_NONE,
	PICKLE_BOOL,
	PICKLE_INT,
	PICKLE_OTHER, /* floats, ints beyond 64 bits */
	PICKLE_TEXT,
	PICKLE_BYTES,
	PICKLE_TUPLE,
	PICKLE_LIST,
	PICKLE_SET,
	PICKLE_DICT,
	PICKLE_GLOBAL, /* module.name, symbolically */
	PICKLE_REDUCE, /* callable(*args) */
	PICKLE_NEWOBJ, /* class.__new__(class, *args) */
	PICKLE_PERSID, /* what the saver called by this id */
};

struct pickle;

/* Bytes within buf; not terminated, and may have NULs. */
struct pickle_text {
	const char *at;
	size_t len;
};

/*
 * Read one pickle from the start of buf; what lies behind its end is ignored.
 *
 *   -ENOMSG  no pickle, cut short, or one that uses what is refused
 *   -E2BIG   the graph takes more than `memory` bytes
 *   -ENOMEM
 */
MUST_CHECK int pickle_parse(const uint8_t *buf, size_t len, size_t memory,
			    struct pickle **out);

/* NULL is fine. */
void pickle_free(struct pickle *p);
void pickle_freep(struct pickle **p);

/* What the pickle yields. */
uint32_t pickle_root(const struct pickle *p);

/* Nodes are numbered below this. */
uint32_t pickle_count(const struct pickle *p);

/* PICKLE_NOTHING for a number that no node has. */
enum pickle_kind pickle_kind(const struct pickle *p, uint32_t ref);

/* Ints that fit, not bools. */
bool pickle_int(const struct pickle *p, uint32_t ref, int64_t *out);

/* The bool True? */
bool pickle_is_true(const struct pickle *p, uint32_t ref);

/* str. Not checked to be UTF-8. */
bool pickle_text(const struct pickle *p, uint32_t ref, struct pickle_text *out);
bool pickle_is_text(const struct pickle *p, uint32_t ref, const char *text);

/* Is this the text? */
bool pickle_text_is(struct pickle_text text, const char *want);

/* A global's two parts; and is it this one? */
bool pickle_global(const struct pickle *p, uint32_t ref,
		   struct pickle_text *module, struct pickle_text *name);
bool pickle_is_global(const struct pickle *p, uint32_t ref, const char *module,
		      const char *name);

/* Callable, class or persistent id of REDUCE, NEWOBJ, PERSID. */
uint32_t pickle_call(const struct pickle *p, uint32_t ref);

/* The tuple of arguments of REDUCE, NEWOBJ. */
uint32_t pickle_args(const struct pickle *p, uint32_t ref);

/* What BUILD gave to an object. */
uint32_t pickle_state(const struct pickle *p, uint32_t ref);

/* The list or dict that was put into an object; a container itself. */
uint32_t pickle_items(const struct pickle *p, uint32_t ref);

/* Of tuples. */
uint32_t pickle_tuple_len(const struct pickle *p, uint32_t ref);
uint32_t pickle_at(const struct pickle *p, uint32_t ref, uint32_t i);

/* A member of a tuple that is an int of 0 and more. */
bool pickle_size_at(const struct pickle *p, uint32_t ref, uint32_t i,
		    uint64_t *out);

/*
 * A dict's value by key, for the small dicts that are objects' attributes:
 * only the first 64 are looked at.
 */
uint32_t pickle_get(const struct pickle *p, uint32_t dict, const char *key);

/* Steps through a tuple, list or set, or through a dict: key, value, key, … */
struct pickle_iter {
	const struct pickle *pickle;
	uint32_t chunk;
	uint32_t i;
	uint32_t n;
};
void pickle_iter_init(struct pickle_iter *it, const struct pickle *p,
		      uint32_t ref);
bool pickle_next(struct pickle_iter *it, uint32_t *ref);

#endif
