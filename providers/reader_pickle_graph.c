/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph that a pickle becomes: how its nodes are kept, and the questions of
 * reader_pickle.h about them. Every array grows through pickle_reserve(), which
 * knows the budget; what is shared is never copied.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_pickle_graph.h"

#define ATTRIBUTES_MAX 64

/* ---- arrays ---- */

int pickle_reserve(struct pickle *p, struct array *a, size_t elem, size_t more)
{
	size_t need = a->n + more, room = a->room ? a->room : 64;
	void *grown;

	if (a->at && need <= a->room)
		return 0;
	while (room < need)
		room *= 2;
	if (room > INT32_MAX || (room - a->room) * elem > p->memory)
		return -E2BIG;
	grown = realloc(a->at, room * elem);
	if (!grown)
		return -ENOMEM;
	p->memory -= (room - a->room) * elem;
	a->at = grown;
	a->room = (uint32_t)room;
	return 0;
}

int pickle_push_number(struct pickle *p, struct array *a, uint32_t value)
{
	int err = pickle_reserve(p, a, sizeof(value), 1);

	if (err)
		return err;
	((uint32_t *)a->at)[a->n++] = value;
	return 0;
}

int pickle_node_new(struct pickle *p, const struct node *node, uint32_t *ref)
{
	int err = pickle_reserve(p, &p->nodes, sizeof(*node), 1);

	if (err)
		return err;
	((struct node *)p->nodes.at)[p->nodes.n] = *node;
	*ref = p->nodes.n++;
	return 0;
}
/* ---- containers ---- */

/* Add n numbers to a container. The last chunk grows where it is if it lies at
 * the end; one APPEND after the other so makes one chunk. */
int pickle_items_add(struct pickle *p, uint32_t container, const uint32_t *from,
		     uint32_t n)
{
	struct node *node = node_at(p, container);
	uint32_t tail = node->items.tail, *refs;
	int err = pickle_reserve(p, &p->refs, sizeof(*refs), (size_t)n + 2);

	if (err || !n)
		return err;
	refs = p->refs.at;
	if (!tail || tail + 2 + refs[tail + 1] != p->refs.n) {
		uint32_t chunk = p->refs.n;

		refs[chunk] = refs[chunk + 1] = 0;
		p->refs.n += 2;
		if (tail)
			refs[tail] = chunk;
		else
			node->items.head = chunk;
		tail = node->items.tail = chunk;
	}
	memcpy(refs + p->refs.n, from, n * sizeof(*from));
	p->refs.n += n;
	refs[tail + 1] += n;
	return 0;
}

int pickle_container(struct pickle *p, uint32_t target, enum pickle_kind kind,
		     uint32_t *out)
{
	const struct node fresh = { .kind = kind };
	struct node *node = node_at(p, target);
	int err;

	if (is_object(node->kind)) {
		if (!node->object.items) {
			err = pickle_node_new(p, &fresh, out);
			if (!err)
				node_at(p, target)->object.items = *out;
			return err;
		}
		target = node->object.items;
		node = node_at(p, target);
	}
	if (node->kind != kind)
		return -ENOMSG;
	*out = target;
	return 0;
}
int pickle_make_fixed(struct pickle *p)
{
	static const uint32_t kinds[] = {
		[PICKLE_NOTHING] = PICKLE_NOTHING, [NODE_NONE] = PICKLE_NONE,
		[NODE_TRUE] = PICKLE_BOOL,         [NODE_FALSE] = PICKLE_BOOL,
		[NODE_EMPTY] = PICKLE_TUPLE,       [NODE_OTHER] = PICKLE_OTHER,
	};
	int err = pickle_push_number(p, &p->refs, 0); /* chunk 0 is none */

	for (size_t i = 0; !err && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		const struct node node = { .kind = kinds[i] };
		uint32_t ref;

		err = pickle_node_new(p, &node, &ref);
	}
	return err;
}

void pickle_free(struct pickle *p)
{
	if (!p)
		return;
	free(p->nodes.at);
	free(p->refs.at);
	free(p);
}

void pickle_freep(struct pickle **p)
{
	pickle_free(*p);
}

/* ---- questions ---- */

uint32_t pickle_root(const struct pickle *p)
{
	return p->root;
}

uint32_t pickle_count(const struct pickle *p)
{
	return p->nodes.n;
}

enum pickle_kind pickle_kind(const struct pickle *p, uint32_t ref)
{
	return node_at(p, ref)->kind;
}

bool pickle_int(const struct pickle *p, uint32_t ref, int64_t *out)
{
	const struct node *node = node_at(p, ref);

	if (node->kind != PICKLE_INT)
		return false;
	*out = (int64_t)((uint64_t)node->number.high << 32 | node->number.low);
	return true;
}

bool pickle_is_true(const struct pickle *p, uint32_t ref)
{
	(void)p;
	return ref == NODE_TRUE;
}

static struct pickle_text text_at(const struct pickle *p, uint32_t off,
				  uint32_t len)
{
	return (struct pickle_text){ (const char *)p->buf + off, len };
}

bool pickle_text_is(struct pickle_text text, const char *want)
{
	return text.len == strlen(want) && !memcmp(text.at, want, text.len);
}

bool pickle_text(const struct pickle *p, uint32_t ref, struct pickle_text *out)
{
	const struct node *node = node_at(p, ref);

	if (node->kind != PICKLE_TEXT)
		return false;
	*out = text_at(p, node->text.off, node->text.len);
	return true;
}

bool pickle_is_text(const struct pickle *p, uint32_t ref, const char *text)
{
	struct pickle_text found;

	return pickle_text(p, ref, &found) && pickle_text_is(found, text);
}

bool pickle_global(const struct pickle *p, uint32_t ref,
		   struct pickle_text *module, struct pickle_text *name)
{
	const struct node *node = node_at(p, ref);

	if (node->kind != PICKLE_GLOBAL)
		return false;
	*module = text_at(p, node->global.module, node->global.module_len);
	*name = text_at(p, node->global.name, node->global.name_len);
	return true;
}

bool pickle_is_global(const struct pickle *p, uint32_t ref, const char *module,
		      const char *name)
{
	struct pickle_text found_module, found_name;

	return pickle_global(p, ref, &found_module, &found_name) &&
	       pickle_text_is(found_module, module) &&
	       pickle_text_is(found_name, name);
}

uint32_t pickle_call(const struct pickle *p, uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	return is_object(node->kind) || node->kind == PICKLE_PERSID
		       ? node->object.call
		       : 0;
}

uint32_t pickle_args(const struct pickle *p, uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	return is_object(node->kind) ? node->object.args : 0;
}

uint32_t pickle_state(const struct pickle *p, uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	return is_object(node->kind) ? node->object.state : 0;
}

uint32_t pickle_items(const struct pickle *p, uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	if (is_object(node->kind))
		return node->object.items;
	if (node->kind >= PICKLE_TUPLE && node->kind <= PICKLE_DICT)
		return ref;
	return 0;
}

uint32_t pickle_tuple_len(const struct pickle *p, uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	return node->kind == PICKLE_TUPLE ? node->tuple.n : 0;
}

uint32_t pickle_at(const struct pickle *p, uint32_t ref, uint32_t i)
{
	const struct node *node = node_at(p, ref);

	if (i >= pickle_tuple_len(p, ref))
		return 0;
	return number_at(&p->refs, node->tuple.first + i);
}

bool pickle_size_at(const struct pickle *p, uint32_t ref, uint32_t i,
		    uint64_t *out)
{
	int64_t value;

	if (!pickle_int(p, pickle_at(p, ref, i), &value) || value < 0)
		return false;
	*out = (uint64_t)value;
	return true;
}

uint32_t pickle_get(const struct pickle *p, uint32_t dict, const char *key)
{
	struct pickle_iter it;
	uint32_t found_key, value;

	if (pickle_kind(p, dict) != PICKLE_DICT)
		return 0;
	pickle_iter_init(&it, p, dict);
	for (int i = 0; i < ATTRIBUTES_MAX; i++) {
		if (!pickle_next(&it, &found_key) || !pickle_next(&it, &value))
			return 0;
		if (pickle_is_text(p, found_key, key))
			return value;
	}
	return 0;
}

/* A tuple is one run of numbers, without chunks. */
void pickle_iter_init(struct pickle_iter *it, const struct pickle *p,
		      uint32_t ref)
{
	const struct node *node = node_at(p, ref);

	*it = (struct pickle_iter){ .pickle = p };
	if (node->kind == PICKLE_TUPLE) {
		it->i = node->tuple.first;
		it->n = node->tuple.n;
	} else if (node->kind >= PICKLE_LIST && node->kind <= PICKLE_DICT) {
		it->chunk = node->items.head;
	}
}

bool pickle_next(struct pickle_iter *it, uint32_t *ref)
{
	const struct array *refs = &it->pickle->refs;

	while (!it->n && it->chunk) {
		it->i = it->chunk + 2;
		it->n = number_at(refs, it->chunk + 1);
		it->chunk = number_at(refs, it->chunk);
	}
	if (!it->n)
		return false;
	it->n--;
	*ref = number_at(refs, it->i++);
	return true;
}
